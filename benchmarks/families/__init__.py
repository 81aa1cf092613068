"""Compares every supported family of networks with transformers."""
