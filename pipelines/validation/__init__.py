"""Proofs that the speculative answer is the target's own; ``python -m pipelines.validation`` runs them."""
