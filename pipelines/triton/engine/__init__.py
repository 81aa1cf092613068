"""Serves the model ``speculative``: the draft-then-verify loop, and the target alone."""
