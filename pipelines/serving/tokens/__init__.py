"""Serves the models ``target`` and ``speculative``: token ids in, token ids out."""
