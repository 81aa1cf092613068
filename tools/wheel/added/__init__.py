"""Modules that only the wheel has; in the checkout ``pipelines.__main__`` is the command."""
