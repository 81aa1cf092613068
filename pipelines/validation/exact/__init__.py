"""Prove token by token that every kind of request gets the answer of the target alone."""
