"""Simulate fleets of servers and front doors that this machine cannot hold."""
