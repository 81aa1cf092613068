"""Stands before Intel's package of this name, which OpenVINO requires and which sends reports to Google.

Without it OpenVINO sends nothing, as in a checkout, whose locks leave it out.
"""

raise ModuleNotFoundError("Draftproof sends no telemetry", name="openvino_telemetry")
