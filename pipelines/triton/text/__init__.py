"""Text in, text out: the text models, and the ends of ``ensemble``."""
