"""Servers, networks, disks and front doors of a fleet fail while clients ask.

``make drills-fleet`` runs them with the tests' tiny pair: three servers and two front doors behind HAProxy on
this machine. Each client knows the right answers, and on which server its session is.
"""
