"""Build engines with TensorRT-LLM 1.2.1: rules, memory plan, commands, and checks of the result."""
