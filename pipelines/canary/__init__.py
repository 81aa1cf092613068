"""Roll out a new pair of engines step by step, judged against the pair in service."""
