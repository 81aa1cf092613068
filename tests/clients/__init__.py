"""Programs for the environment `.venv-clients`, which use clients that others wrote."""
