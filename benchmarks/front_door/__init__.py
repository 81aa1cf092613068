"""Measures what OpenAI's API and structured output cost."""
