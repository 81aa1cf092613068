"""Handles tokens as bytes of text: vocabulary, chunk boundaries, stop words and bad words."""
