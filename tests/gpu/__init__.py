"""The first hour on a GPU, as one command that is rehearsed on stand-ins: ``python -m tests.gpu``."""
