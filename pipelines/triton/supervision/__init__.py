"""Supervises Triton and its model processes and replaces those that died or hang."""
