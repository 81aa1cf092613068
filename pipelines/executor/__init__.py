"""The in-flight batcher of the embedded runtime.

``engine`` computes one step, ``kv_cache`` owns the blocks that keys and values live in, ``sequence`` is
one request's state, ``scheduler`` decides what a step computes, ``executor`` ties them together and
``step_loop`` gives them a thread.
"""
