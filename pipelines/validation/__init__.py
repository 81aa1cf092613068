"""Prove that speculative answers equal the target's own: ``python -m pipelines.validation``."""
