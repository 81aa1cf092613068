"""Operators of our own, which an engine can carry instead of OpenVINO's."""
