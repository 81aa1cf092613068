"""Compile a network to an OpenVINO engine."""
