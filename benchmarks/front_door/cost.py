"""Measure what OpenAI's API costs beside asking ``router`` over gRPC.

``python -m benchmarks.front_door.cost --recipe demo-large`` starts a server and sends each prompt both ways,
alternately: one request at a time to measure the time to the first token and per token, then 8 and 16
concurrent requests to measure output tokens per second and the CPU time of the front door's process. The last
line of standard output is JSON. Exit codes: 0 success; 1 a request failed or answers differ; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.front_door.http_client import CompletionsClient
from benchmarks.one_server import drawn_prompts, server_conditions
from benchmarks.two_ways import (
    MAX_TOKENS,
    Added,
    Measurements,
    Ways,
    added_latency,
    in_turn,
    singles_in_turn,
)
from pipelines.bench.blocks import Blocks, Interval
from pipelines.bench.measuring import Measurement, run_once
from pipelines.bench.plan import Arm, Cell, ClosedLoop
from pipelines.bench.prompt_sets import PromptSet
from pipelines.client import Client, CompletionRequest, Generation
from pipelines.client.workers import Ask, Workers
from pipelines.command_line.given_prompts import add_prompts_option
from pipelines.command_line.options import whole_number
from pipelines.command_line.running_server import known_key
from pipelines.deploy.ports import HOST, Ports
from pipelines.deploy.server import Server, run_directory
from pipelines.program import EXIT_FAIL, EXIT_PASS, run_program, stopped_by_signals

GRPC, OPENAI = Arm("router"), Arm("OpenAI's API")
WAYS: Ways = (GRPC, OPENAI)
CONCURRENCY = (8, 16)
NUM_PROMPTS = 32


@dataclass(frozen=True)
class UnderLoad:
    """Concurrent requests over both ways.

    Attributes:
        num_at_once: Concurrent requests.
        speed_ratio: Output tokens per second over OpenAI's API divided by those over gRPC.
        cpu_share: Median CPU time of the front door's process, in cores, while it answers these requests.
        cpu_us_per_token: Its CPU time per output token, in microseconds.
    """

    num_at_once: int
    speed_ratio: Interval
    cpu_share: float
    cpu_us_per_token: float


@dataclass(frozen=True)
class FrontDoorCost:
    """Cost of the front door.

    Attributes:
        ttft: Time to first token; ``direct`` is gRPC, ``routed`` OpenAI's API.
        itl: Inter-token latency.
        loads: Figures under load.
        num_different: Answers whose text is not the same over both ways.
    """

    ttft: Added
    itl: Added
    loads: tuple[UnderLoad, ...]
    num_different: int


class CpuTime:
    """The CPU time of a process.

    Args:
        process_id: Its id.
    """

    def __init__(self, process_id: int) -> None:
        self._path = Path(f"/proc/{process_id}/stat")

    def seconds(self) -> float:
        """Return its CPU time so far, user and system."""
        fields = self._path.read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(prompt_set: PromptSet, repetitions: int, workers: Workers, cpu: CpuTime) -> FrontDoorCost:
    """Send requests over gRPC and over OpenAI's API, alternately.

    Args:
        prompt_set: Prompts to send in each repetition, after a warm-up.
        repetitions: Number of repetitions, at least 2.
        workers: Clients, as many as the largest of ``CONCURRENCY``.
        cpu: CPU time of the front door.

    Raises:
        DraftproofError: A request failed.
    """
    used_s: list[float] = []

    def run(cell: Cell, arm: Arm, repetition: int) -> Measurement:
        return run_once(cell, arm, MAX_TOKENS, workers, repetition)

    def run_timed(cell: Cell, arm: Arm, repetition: int) -> Measurement:
        before_s = cpu.seconds()
        found = run(cell, arm, repetition)
        if arm == OPENAI:
            used_s.append(cpu.seconds() - before_s)
        return found

    singles = singles_in_turn(prompt_set, WAYS, repetitions, run)
    loads, measured = [], [singles]
    for num_at_once in CONCURRENCY:
        used_s.clear()
        busy = in_turn([Cell(prompt_set, ClosedLoop(num_at_once))], WAYS, repetitions, run_timed)
        measured.append(busy)
        speeds = {arm: [each.output_tokens_per_s for each in found] for arm, found in busy.items()}
        walls_s = [each.wall_s for each in busy[OPENAI]]
        num_tokens = sum(each.num_output_tokens for each in busy[OPENAI])
        loads.append(
            UnderLoad(
                num_at_once,
                Blocks(speeds).ratio(OPENAI, GRPC),
                statistics.median(used / wall for used, wall in zip(used_s, walls_s, strict=True)),
                1e6 * sum(used_s) / num_tokens,
            )
        )
    return FrontDoorCost(
        ttft=added_latency(singles, WAYS, lambda answer: answer.ttft_s),
        itl=added_latency(singles, WAYS, lambda answer: answer.itl_s),
        loads=tuple(loads),
        num_different=sum(map(_num_different, measured)),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parse(arguments)
    command_line = sys.argv[1:] if arguments is None else list(arguments)

    def work() -> int:
        prompts, prompt_set = drawn_prompts(options, NUM_PROMPTS)
        with started_server(options.recipe) as server:
            address = f"grpc://{HOST}:{server.ports.grpc}"
            context = server_conditions(
                "benchmarks.front_door.cost", command_line, options.recipe, address, prompts
            )
            with connected(address, server.ports.openai, max(CONCURRENCY)) as workers:
                cost = measure(prompt_set, options.repetitions, workers, CpuTime(front_door_of(server)))
        document = {"max_tokens": MAX_TOKENS, **asdict(cost), "conditions": context}
        print(json.dumps(document))
        return EXIT_FAIL if cost.num_different else EXIT_PASS

    return run_program(work)


@contextlib.contextmanager
def started_server(recipe: str) -> Iterator[Server]:
    """Run a server with OpenAI's API on free ports, and let clients of this process use its key.

    Raises:
        ServerStartError: It did not become ready.
    """
    directory = run_directory(recipe)
    with stopped_by_signals(), Server.start(directory, Ports.free(with_openai=True)) as server:
        print(f"starting a server; log {server.log}", file=sys.stderr, flush=True)
        server.wait_ready()
        with known_key(directory):
            yield server


@contextlib.contextmanager
def connected(address: str, openai_port: int, num_workers: int) -> Iterator[Workers]:
    """Connect workers that ask ``router`` over gRPC, or the front door for the model of ``OPENAI``."""
    with contextlib.ExitStack() as stack:
        asks = []
        for _ in range(num_workers):
            direct = stack.enter_context(Client.connect(address))
            door = CompletionsClient(HOST, openai_port)
            stack.callback(door.close)
            asks.append(_ask_of(direct, door))
        yield Workers(asks)


def front_door_of(server: Server) -> int:
    """Return the id of the process that serves OpenAI's API.

    Raises:
        LookupError: There is no such process, or more than one.
    """
    wanted = [b"-m", b"pipelines.front_door", os.fsencode(server.directory.resolve())]
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().split(b"\0")[1:4] == wanted:
                found.append(int(path.parent.name))
    if len(found) != 1:
        raise LookupError(f"{len(found)} front doors of {server.directory}")
    return found[0]


def _ask_of(direct: Client, door: CompletionsClient) -> Ask:
    def ask(request: CompletionRequest, model: str) -> Generation:
        if model == OPENAI.model:
            return door.generate(request)
        return direct.stream(request, model).result()

    return ask


def _num_different(measured: Measurements) -> int:
    return sum(
        one.text != other.text
        for direct, door in zip(measured[GRPC], measured[OPENAI], strict=True)
        for one, other in zip(direct.generations, door.generations, strict=True)
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.front_door.cost", description=__doc__)
    parser.add_argument("--recipe", default="demo-large", help="recipe of the server to start (%(default)s)")
    add_prompts_option(parser)
    parser.add_argument(
        "--repetitions", type=whole_number(2), default=8, help="repetitions of every prompt (%(default)s)"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
