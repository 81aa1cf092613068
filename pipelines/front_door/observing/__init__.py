"""Shows operators what the front door does."""
