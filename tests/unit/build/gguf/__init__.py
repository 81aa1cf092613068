"""Tests of GGUF files as checkpoints."""
