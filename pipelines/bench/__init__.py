"""Times ``generate`` against ``generate_target`` on one server; ``python -m pipelines.bench`` runs it."""
