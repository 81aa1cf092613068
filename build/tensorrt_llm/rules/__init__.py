"""Rules that preflight checks before a TensorRT-LLM pair is compiled."""
