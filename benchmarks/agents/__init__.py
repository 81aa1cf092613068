"""Lets coding agents work with our server, and records what their requests cost."""
