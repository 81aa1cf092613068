"""Compares the draft length that a server chooses with constants and with another commit's choice."""
