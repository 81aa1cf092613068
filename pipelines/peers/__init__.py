"""Our server beside other engines, on the same weights, prompts and cores."""
