"""Serves the draft-then-verify loop as the model ``speculative``."""
