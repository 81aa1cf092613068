"""Programs that the interpreters of other engines run."""
