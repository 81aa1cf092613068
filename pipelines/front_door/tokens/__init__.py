"""Tells where the single tokens of an answer came from and how likely they were."""
