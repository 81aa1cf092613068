"""Audit first divergences on runtimes whose kernels depend on the batch."""
