"""Samples tokens in the same way for drafting, verification and plain decoding."""
