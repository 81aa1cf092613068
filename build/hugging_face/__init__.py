"""Read and write checkpoints in the form in which people publish them, without torch."""
