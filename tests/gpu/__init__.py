"""The first hour on a GPU, as one command: ``python -m tests.gpu``."""
