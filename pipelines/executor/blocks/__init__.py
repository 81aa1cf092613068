"""Allocates the blocks of an engine's KV cache, shares their contents and divides them between lanes."""
