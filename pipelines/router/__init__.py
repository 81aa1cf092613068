"""Chooses the arm that answers a request, falls back to other arms, and records observations."""
