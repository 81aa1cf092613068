"""Rows of a step: how many pay, which draft tokens get one, and what they cost."""
