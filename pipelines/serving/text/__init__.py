"""Text in, text out: ``generate``, ``generate_target``, and the ends of ``ensemble``."""
