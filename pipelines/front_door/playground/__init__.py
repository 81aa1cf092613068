"""A page to try the served model in a browser."""
