"""Serves OpenAI's API: turns its requests into those of the model ``router`` and its answers into events."""
