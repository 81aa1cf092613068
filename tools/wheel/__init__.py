"""Builds the one package that is installed elsewhere: the client, as the wheel ``draftproof``."""
