"""Tokens as bytes of text: what a token spells, where a stream may be cut, where a stop word ends it."""
