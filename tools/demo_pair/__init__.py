"""Train the demonstration pair, target and draft, on the source code of the standard library."""
