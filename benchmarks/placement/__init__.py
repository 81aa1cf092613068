"""Measures what the choice among three real servers does, and what looking at a server costs."""
