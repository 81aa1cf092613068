"""Compares answers of engines with speculation and without."""
