"""Rolls a candidate out on a fleet: one controller asks an agent beside each server."""
