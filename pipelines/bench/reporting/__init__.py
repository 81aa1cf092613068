"""Shared parts of reports: sections, conditions of a measurement."""
