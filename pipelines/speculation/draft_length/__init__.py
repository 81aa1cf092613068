"""Decides how many tokens each round drafts."""
