"""The whole road in one program: engines, server, text that arrives, figures, verdict."""
