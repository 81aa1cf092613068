"""Records the answers of a control, and keeps them in a file."""
