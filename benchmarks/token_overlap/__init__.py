"""Measure drafts that have only a part of the target's tokens."""
