"""Serves the models ``router`` and ``router_unary``, which send each request to one of the arms."""
