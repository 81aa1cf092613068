"""Decides who may use the front door, and how much of it at a time."""
