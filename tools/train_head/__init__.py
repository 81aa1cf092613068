"""Train a head (EAGLE-3) for a target on what the target itself writes."""
