"""Adapts Triton's Python backend: tensors, responses, metrics and settings of a model."""
