"""A Triton repository with NVIDIA's model names, tensors and refusals, and a table for a language model.

Names, types and rules are those of TensorRT-LLM release/1.2, triton_backend/all_models/inflight_batcher_llm,
as far as a client can see them. Nothing here is NVIDIA's code.
"""
