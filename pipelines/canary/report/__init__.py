"""Report a rollout as a JSON document, as a page, and on a terminal."""
