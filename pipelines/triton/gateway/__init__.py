"""Serves clients: checks each request, forwards it to Triton, and supervises Triton and its models."""
