"""Text in, text out: ``generate``, ``generate_target``, their ``_unary`` twins, the ends of ``ensemble``."""
