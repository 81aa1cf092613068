"""Measure a pair of engines after they are built."""
