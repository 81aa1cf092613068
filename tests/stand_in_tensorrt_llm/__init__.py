"""NVIDIA's ``tensorrtllm`` backend as far as a client can see it, behind the rendered configurations.

Behaviour, refusals and traps are those of TensorRT-LLM 1.2 (triton_backend/inflight_batcher_llm/src, the
sampling layers and kernels); each place names its source. Nothing here is NVIDIA's code. Where it is
stricter than the original it says so. The network is a function of the last tokens.
"""
