"""Read projections that are stored quantized, in the forms in which people publish them.

The tensors of a checkpoint decide which projections are quantized: what ``ignore`` or
``modules_to_not_convert`` lists has a ``weight`` in floating point. A form decides what the others mean.
"""
