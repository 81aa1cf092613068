"""Sends requests to several servers of the same pair; what one leaves unfinished, another continues."""
