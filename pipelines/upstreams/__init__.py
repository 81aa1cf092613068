"""Answers OpenAI's API with two servers of any engine, and rolls the new one out."""
