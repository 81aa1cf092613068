"""Tables of the reference pages that are read from the code."""
