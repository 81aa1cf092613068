"""Adapts the engines to Triton's models: tensors, admission, cancellation, responses, metrics.

The models in ``model_repository/`` are thin shells around the classes here. Only ``serving/triton`` touches
Triton's Python backend, so everything else is tested without a server.
"""
