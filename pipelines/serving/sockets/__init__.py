"""Calls between models of the same server over Unix sockets."""
