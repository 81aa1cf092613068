"""Read and write checkpoints and tokenizers, without torch."""
