"""How models write tool calls: a module for each form, and the list of all of them in ``messages.style``."""
