"""Judges a candidate by the requests that candidate, stable pair and target alone answered.

The judge asks no server. Its statistics stay valid however often they are computed
(docs/decisions/rollouts.md).
"""
