"""The online half of Draftproof: what runs while requests are served, measured and judged."""
