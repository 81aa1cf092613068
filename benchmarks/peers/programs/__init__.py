"""One program per peer, run by the interpreter of its environment."""
