"""Measure single costs: decode step, memory bandwidth, batcher, change of domain."""
