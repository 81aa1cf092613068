"""Start and stop the Triton server of a recipe, and check what a machine can run."""
