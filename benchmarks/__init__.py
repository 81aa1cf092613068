"""Benchmarks: comparisons with other engines, and costs of single components. No server imports this."""
