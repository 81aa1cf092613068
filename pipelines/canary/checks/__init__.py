"""Check a candidate before and while it serves, in addition to the judge's metrics."""
