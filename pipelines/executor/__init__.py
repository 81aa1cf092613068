"""Implements in-flight batching for the embedded runtime.

``scheduler`` decides what a step computes, ``engine`` computes it, and ``executor`` combines them. A
``Request`` waits and runs in a ``BatchClass``; ``contexts`` and ``kv_cache`` hold what the engine keeps of
its text. ``step_loop`` runs executors on a thread.
"""
