"""Trains the demonstration pair: a small target and a smaller draft, on the source text of the standard library."""
