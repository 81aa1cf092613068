"""Rolls a new engine pair out: measures it beside the one in service, and judges it while it serves."""
