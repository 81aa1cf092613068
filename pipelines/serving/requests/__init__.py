"""Reads and checks a request's tensors, admits it, and sends exactly one last response."""
