"""Judges a candidate by requests that it, the stable pair and the target alone answered; asks no server.

Its statistics may be looked at as often as one likes: decision 0024.
"""
