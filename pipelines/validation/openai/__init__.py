"""Verify any two OpenAI-compatible servers, one with speculation and one without."""
