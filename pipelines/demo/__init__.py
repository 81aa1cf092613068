"""Demonstrate the whole pipeline: build, serve, generate and compare."""
