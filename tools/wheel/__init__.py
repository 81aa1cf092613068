"""Builds the wheel ``draftproof``, the one package that is installed elsewhere: client and ``verify``."""
