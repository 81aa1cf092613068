"""Drills of the canary rollout: candidates with one fault each, rolled out on a real server under load.

``make drills`` runs all of them with the pair ``demo``. ``tests/integration/test_canary_drills.py`` runs
those that do not depend on speed, with tiny engines.
"""
