"""Measures what quantization and arithmetic cost a model's predictions."""
