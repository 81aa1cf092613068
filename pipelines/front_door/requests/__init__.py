"""Reads bodies of requests and turns their fields into requests to ``router``."""
