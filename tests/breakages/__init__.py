"""Deliberate breakages of the code, each of which a named test must catch: ``python -m tests.breakages``."""
