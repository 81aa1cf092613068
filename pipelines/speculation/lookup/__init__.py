"""Looks drafts up: in a prediction, the request's text, its session's answers and the operator's corpus."""
