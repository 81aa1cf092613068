"""What a control answered: made by asking it, kept in a file."""
