"""Compares our server with llama.cpp's on the same file, prompts and cores."""
