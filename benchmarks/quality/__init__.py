"""Measures what quantization and arithmetic cost a model: predictions, and tasks with one right answer."""
