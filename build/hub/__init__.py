"""Download checkpoints from the Hugging Face hub into its cache on this machine."""
