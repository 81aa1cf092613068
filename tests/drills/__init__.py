"""Drills of the canary rollout: candidates with a fault each, through a real server under load.

``make drills`` runs them all on the pair ``demo``; ``tests/integration/test_canary_drills.py`` those that
need no speed, on tiny engines.
"""
