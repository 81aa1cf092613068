"""Quantize checkpoints for TensorRT-LLM; only ``modelopt_worker`` imports torch."""
