"""Asks OpenAI-compatible servers and reads their answers strictly."""
