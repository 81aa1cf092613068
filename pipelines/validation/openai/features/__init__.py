"""Features of requests that are compared besides plain greedy answers."""
