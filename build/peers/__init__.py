"""Writes a recipe's pair in the forms that other engines read, for `make bench-peers`."""
