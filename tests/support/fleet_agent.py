"""Runs the agent of a server whose candidate is rendered from existing engines.

``python -m tests.support.fleet_agent RUN_DIRECTORY DRAFT TARGET KEY_FILE`` prints the agent's address.
"""

from __future__ import annotations

import sys
from pathlib import Path

from build.rendering import second_pair
from pipelines.canary.controller import triton_world
from pipelines.canary.controller.candidate import CandidatePair
from pipelines.canary.fleet.agent import Agent
from pipelines.canary.fleet.agent_server import AgentServer
from pipelines.canary.fleet.fleet_file import read_agent_key
from pipelines.deploy.ports import HOST
from tests.integration.conftest import tiny_recipe


def main(directory: Path, draft: Path, target: Path, key_file: Path) -> None:
    def render(recipe: str, run: Path, free: int, public_key: None) -> CandidatePair:
        record = second_pair.render_second_pair(tiny_recipe(recipe), draft, target, run)
        return CandidatePair.read(run, record.speculative_model)

    triton_world.render_beside = render  # type: ignore[assignment]
    with AgentServer(Agent(directory), read_agent_key(key_file), (HOST, 0)) as server:
        print(f"http://{HOST}:{server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
