"""Measures a pair of engines after they are built; ``python -m pipelines.calibration`` does it."""
