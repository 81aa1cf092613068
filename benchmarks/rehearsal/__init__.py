"""Rehearses the pairs of the recipes with random weights of their real shapes."""
