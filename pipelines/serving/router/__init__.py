"""Serves the model ``router``, which sends each request to one of the arms."""
