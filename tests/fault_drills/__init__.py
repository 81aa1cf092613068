"""Drills of the server: killed and stopped processes, crowds, hostile clients, damaged files.

``make drills-faults`` runs them with the pair ``demo``. Clients know every right answer. Each drill reports
what its clients were answered, how long the server took to notice and to recover, and what went wrong.
"""
