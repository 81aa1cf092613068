"""Convert a recipe's pair to the formats of other engines, for ``make bench-peers``."""
