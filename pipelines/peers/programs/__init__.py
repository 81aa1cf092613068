"""One program per engine, run by the interpreter of that engine's own environment."""
