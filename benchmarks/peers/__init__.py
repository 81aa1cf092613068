"""Compare our server with other engines on the same weights, prompts and cores."""
