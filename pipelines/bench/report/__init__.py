"""Summarize measurements as figures, and report them as text, page and JSON."""
