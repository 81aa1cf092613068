"""Looks drafts up in a request's own text, in earlier answers of its session and in the operator's corpus."""
