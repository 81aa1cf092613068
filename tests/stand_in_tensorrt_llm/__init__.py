"""A stand-in for NVIDIA's ``tensorrtllm`` backend, as clients see it, behind the rendered configurations.

Behaviour, refusals and traps are those of TensorRT-LLM 1.2 (triton_backend/inflight_batcher_llm/src, the
sampling layers and kernels); comments name the source. Nothing here is NVIDIA's code. Comments also mark
where it is stricter than the original. The network is a function of the last tokens.
"""
