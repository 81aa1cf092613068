"""Starts and stops the Triton server of a recipe, and says what a machine has and lacks."""

from pipelines.deploy.doctor import examine
from pipelines.deploy.ports import Ports
from pipelines.deploy.server import Server, run_directory

__all__ = ["Ports", "Server", "examine", "run_directory"]
