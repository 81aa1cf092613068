"""Measure the speed of ``generate`` against ``generate_target``: ``python -m pipelines.bench``."""
