"""A Triton repository with NVIDIA's model names, tensors and refusals, and a table as its language model.

Names, types and rules are those that a client of TensorRT-LLM release/1.2 sees
(triton_backend/all_models/inflight_batcher_llm). Nothing here is NVIDIA's code.
"""
