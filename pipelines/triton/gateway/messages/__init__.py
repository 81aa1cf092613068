"""Checks and rewrites requests for gRPC and HTTP."""
