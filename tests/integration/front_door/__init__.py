"""Tests of the front door on a real Triton, with the client that OpenAI publishes."""
