"""Implements in-flight batching for the embedded runtime.

``engine`` computes a step, ``kv_cache`` manages the blocks for keys and values, ``sequence`` holds the state
of a request, ``lane`` decides what a step computes, ``executor`` combines them, and ``step_loop`` runs
executors on a thread.
"""
