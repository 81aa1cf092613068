"""What stands between Triton and the engines: tensors in and out, admission, cancellation, gauges.

The models in ``model_repository/`` are shells around the classes here. Only ``triton_wire`` knows
Triton's Python backend, so everything else is tested without a server.
"""
