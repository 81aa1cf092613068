"""Thoughts, text and tool calls in the answer of a chat model: how it writes them, limits and reads them."""
