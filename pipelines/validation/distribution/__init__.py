"""Test whether unseeded answers follow the distribution of the target alone."""
