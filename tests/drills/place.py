"""The place of the drills: one pair, its server, and the target's own answer to every request."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import yaml

from build.engines import build_engines
from build.recipe import load_recipe, parse_recipe
from build.repository import render_recipe
from pipelines.client import Client, CompletionRequest, Timeouts
from pipelines.deploy.ports import HOST, Ports
from pipelines.deploy.server import Server
from pipelines.deploy.triton.place import prefix_of
from pipelines.process import ProcessIdentity, processes_with
from pipelines.triton.supervision.guard import find_model_processes
from tests.drills.asking import Question, learn
from tests.support.damaged_engines import writable_copy
from tests.support.demo_prompts import held_out_prompts
from tests.support.kserve_http import connect as connect_over_http

TIMEOUTS = Timeouts(connect_s=2, read_s=20, total_s=60)
"""A request that takes longer counts as hung."""

NUM_REQUESTS, MAX_TOKENS = 32, 48
NUM_LONG, LONG_MAX_TOKENS = 8, 200


class Place:
    """One run directory with at most one server.

    Attributes:
        ports: The ports of every server that is started here.
        questions: Short questions, filled in by ``learn``.

    Args:
        folder: An empty folder that gets the run directory.
    """

    def __init__(self, recipe: str, folder: Path) -> None:
        self._recipe = load_recipe(recipe, "embedded")
        engines = build_engines(self._recipe)
        self.draft, self.target = Path(engines["draft"]), Path(engines["target"])
        self.directory = self.render(self.draft, self.target, folder)
        self.ports = Ports.free()
        self.questions: tuple[Question, ...] = ()
        self.long_questions: tuple[Question, ...] = ()
        self.triton_version = ""

    def render(self, draft: Path, target: Path, folder: Path) -> Path:
        """Render a repository, also for copies of the engines, and return the run directory."""
        document = yaml.safe_load(self._recipe.path.read_text(encoding="utf-8"))
        recipe = parse_recipe(document, folder / "recipe.yaml")
        return render_recipe(recipe, draft, target, folder).parent

    def copy_engines(self, folder: Path) -> tuple[Path, Path]:
        """Copy both engines, draft first, so that a drill may damage them."""
        copies = folder / self.draft.name, folder / self.target.name
        for engine, copy in zip((self.draft, self.target), copies, strict=True):
            writable_copy(engine, copy)
        return copies

    @property
    def http(self) -> tuple[str, int]:
        """Return host and port."""
        return HOST, self.ports.http

    @property
    def grpc(self) -> tuple[str, int]:
        """Return host and port."""
        return HOST, self.ports.grpc

    def client(self, number: int = 0) -> Client:
        """Connect a client, over gRPC if the number is even, else over HTTP."""
        if number % 2:
            return connect_over_http(f"http://{HOST}:{self.ports.http}", TIMEOUTS)
        return Client.connect(f"grpc://{HOST}:{self.ports.grpc}", TIMEOUTS)

    def server(self) -> Server:
        """Return the ready server; start it if there is none."""
        server = Server.running(self.directory) or Server.start(self.directory, self.ports)
        server.wait_ready()
        return server

    def stop(self) -> None:
        """Stop the server, if there is one."""
        server = Server.running(self.directory)
        if server is not None:
            server.stop()

    def learn(self) -> None:
        """Ask the target alone for the right answers."""
        self.server()
        prompts = [prompt.text[:200] for prompt in held_out_prompts(NUM_REQUESTS)]
        short = [_request(number, prompt, MAX_TOKENS) for number, prompt in enumerate(prompts)]
        long = [_request(number, prompt, LONG_MAX_TOKENS) for number, prompt in enumerate(prompts[:NUM_LONG])]
        with self.client() as client:
            self.triton_version = client.server_version()
            self.questions, self.long_questions = learn(client, short), learn(client, long)

    def models(self) -> dict[str, ProcessIdentity]:
        """Return the process of each model."""
        return find_model_processes(prefix_of(self.directory))

    def pids(self) -> dict[str, int]:
        """Return the id of each process of the server; Triton's is under "triton"."""
        models = {model: process.pid for model, process in self.models().items()}
        others = set(_pids(prefix_of(self.directory))) - set(models.values())
        return {**models, **dict.fromkeys(("triton",) if others else (), max(others, default=0))}

    def left_behind(self) -> int:
        """Count the server's remaining processes and shared memory regions."""
        prefix = prefix_of(self.directory)
        return len(_pids(prefix)) + len(list(Path("/dev/shm").glob(f"{prefix}*")))

    def seconds_until_nothing_is_left(self, timeout_s: float = 10.0) -> float:
        """Wait until nothing of a stopped server is left; infinity if something stays."""
        began_s = time.monotonic()
        while self.left_behind():
            if time.monotonic() - began_s > timeout_s:
                return float("inf")
            time.sleep(0.02)
        return time.monotonic() - began_s


def _request(number: int, prompt: str, max_tokens: int) -> CompletionRequest:
    """Return greedy and seeded requests in turn; one in five asks for log probabilities."""
    request = CompletionRequest(prompt, max_tokens=max_tokens, end_id=-1)
    if number % 2 == 0:
        request = dataclasses.replace(request, temperature=0.8, seed=number)
    return dataclasses.replace(request, num_log_probs=2) if number % 5 == 0 else request


def _pids(prefix: str) -> list[int]:
    return [process.pid for process, _ in processes_with(prefix)]
