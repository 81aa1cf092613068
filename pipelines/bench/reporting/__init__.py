"""Shared parts of reports: sections, charts, pages, conditions of a measurement."""
