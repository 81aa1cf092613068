"""Lets the loop call engines of TensorRT-LLM."""
