"""Which arm answers a request, what happens when it does not, and what is written down about it."""
