"""Judges a candidate by the requests that it and the pair in service answered.

The judge asks no server. Its statistics stay valid however often they are computed
(docs/decisions/rollouts.md).
"""
