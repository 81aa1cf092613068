"""Trains the demonstration pair: target and draft, on the standard library's source text."""
