"""Checks of ``make doctor``."""
