"""What TensorRT-LLM 1.2.1 needs and refuses: rules, commands, versions, checks of what was built."""
