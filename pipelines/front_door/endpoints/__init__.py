"""Answers the paths of OpenAI's API."""
