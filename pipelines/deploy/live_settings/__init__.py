"""Settings that a running server follows: files of its run directory that it reads when they change."""
