"""Reads GGUF, the files of llama.cpp, LM Studio and Ollama, into directories in the form of transformers."""
