"""Triton's Python backend: tensors and responses in its types, metrics, settings of a model, its key."""
