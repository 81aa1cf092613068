"""Implements speculative decoding without Triton or an engine, with numpy and the standard library.

``loop.speculate`` is the draft-then-verify loop. ``Sampler`` turns logits into tokens and verifies draft
tokens by the ratio rule; ``draws`` and ``noise`` contain all randomness. ``acceptance`` and ``statistics``
count.
"""
