"""Runs the builder of a source tree of TensorRT-LLM on our exports, with stand-ins for TensorRT and CUDA."""
