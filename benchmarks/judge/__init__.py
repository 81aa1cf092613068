"""Simulate rollouts of good and bad candidates to measure the false alarms and misses of the judge."""
