"""Looks drafts up: in a prediction, the request's text and its session's answers."""
