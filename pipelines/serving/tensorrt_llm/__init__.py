"""Serves pairs whose engines run on NVIDIA's TensorRT-LLM backend."""
