"""From a checkpoint to a quantized TensorRT-LLM checkpoint; ``modelopt_worker`` alone imports torch."""
