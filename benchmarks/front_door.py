"""Measure what OpenAI's API costs beside asking ``router`` over gRPC.

``python -m benchmarks.front_door --recipe demo-large`` starts a server and sends each prompt both ways, in
turn: one request at a time to measure the time to the first token and per token, then 8 and 16 concurrent
requests to measure output tokens per second and the CPU time of the front door's process. Exit codes:
0 success; 1 a request failed or answers differ; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.completions_client import CompletionsClient
from benchmarks.harness import (
    Result,
    drawn_prompts,
    interval_cell,
    markdown,
    median_interval,
    num_different_texts,
    parser_of,
    run_benchmark,
    say,
    server_conditions,
)
from pipelines.bench.blocks import Blocks, Interval
from pipelines.bench.measuring import Measurement, run_once
from pipelines.bench.plan import Arm, Cell, ClosedLoop
from pipelines.bench.prompt_sets import PromptSet
from pipelines.client import Client, CompletionRequest, Generation
from pipelines.client.workers import Ask, Workers
from pipelines.command_line.options import whole_number
from pipelines.command_line.running_server import known_key
from pipelines.deploy.ports import HOST, Ports
from pipelines.deploy.server import Server, run_directory
from pipelines.program import EXIT_FAIL, EXIT_PASS

GRPC, OPENAI = WAYS = (Arm("router"), Arm("OpenAI's API"))
CONCURRENCY = (8, 16)
NUM_PROMPTS = 32
MAX_TOKENS = 40

Measurements = dict[Arm, list[Measurement]]
"""Measurements of both ways; entries with the same index are of the same requests."""


@dataclass(frozen=True)
class Added:
    """A latency of single requests over both ways: medians, and the median of the differences."""

    grpc_ms: float
    openai_ms: float
    added_ms: Interval


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
        ttft: Time to first token.
        itl: Inter-token latency.
        loads: Figures under load.
        num_different: Answers whose text is not the same over both ways.
    """

    ttft: Added
    itl: Added
    loads: tuple[UnderLoad, ...]
    num_different: int


def measure(
    prompt_set: PromptSet, repetitions: int, workers: Workers, cpu_s: Callable[[], float]
) -> FrontDoorCost:
    """Send requests over gRPC and over OpenAI's API, in turn.

    Args:
        prompt_set: Prompts to send in each repetition, after a warm-up.
        repetitions: Number of repetitions, at least 2.
        workers: Clients, as many as the largest of ``CONCURRENCY``.
        cpu_s: Returns the CPU time of the front door so far.

    Raises:
        DraftproofError: A request failed.
    """
    used_s: list[float] = []

    def run(cell: Cell, arm: Arm, repetition: int) -> Measurement:
        before_s = cpu_s()
        found = run_once(cell, arm, MAX_TOKENS, workers, repetition)
        if arm == OPENAI:
            used_s.append(cpu_s() - before_s)
        return found

    def in_turn(cells: Sequence[Cell], repetitions: int) -> Measurements:
        """Run each cell in both ways; each way comes first as often as the other."""
        measured: Measurements = {way: [] for way in WAYS}
        for repetition in range(repetitions):
            for number, cell in enumerate(cells):
                for way in WAYS if (repetition + number) % 2 else WAYS[::-1]:
                    measured[way].append(run(cell, way, repetition))
        return measured

    one_each = [
        Cell(PromptSet(f"{prompt_set.name} {number}", (request,)), ClosedLoop(1))
        for number, request in enumerate(prompt_set.requests)
    ]
    in_turn(one_each, 1)  # warms up
    singles = in_turn(one_each, repetitions)
    loads, everything = [], [singles]
    for num_at_once in CONCURRENCY:
        used_s.clear()
        busy = in_turn([Cell(prompt_set, ClosedLoop(num_at_once))], repetitions)
        everything.append(busy)
        speeds = {arm: [each.output_tokens_per_s for each in found] for arm, found in busy.items()}
        walls_s = [each.wall_s for each in busy[OPENAI]]
        loads.append(
            UnderLoad(
                num_at_once,
                Blocks(speeds).ratio(OPENAI, GRPC),
                statistics.median(used / wall for used, wall in zip(used_s, walls_s, strict=True)),
                1e6 * sum(used_s) / sum(each.num_output_tokens for each in busy[OPENAI]),
            )
        )
    return FrontDoorCost(
        ttft=_added(singles, lambda answer: answer.ttft_s),
        itl=_added(singles, lambda answer: answer.itl_s),
        loads=tuple(loads),
        num_different=sum(
            num_different_texts(*pair)
            for measured in everything
            for pair in zip(measured[GRPC], measured[OPENAI], strict=True)
        ),
    )


def _added(singles: Measurements, time_s: Callable[[Generation], float | None]) -> Added:
    """Compare a latency of the answers that have it over both ways."""
    pairs_ms = [
        (1e3 * grpc, 1e3 * openai)
        for one, other in zip(singles[GRPC], singles[OPENAI], strict=True)
        if (grpc := time_s(one.generations[0])) is not None
        and (openai := time_s(other.generations[0])) is not None
    ]
    grpc_ms, openai_ms = map(statistics.median, zip(*pairs_ms, strict=True))
    return Added(grpc_ms, openai_ms, median_interval([openai - grpc for grpc, openai in pairs_ms]))


def table(cost: FrontDoorCost) -> str:
    """Return a line for each latency, and a table with a line for each load."""
    latencies = [
        [
            name,
            f"{added.grpc_ms:.2f} ms",
            f"{added.openai_ms:.2f} ms",
            interval_cell(added.added_ms, 2, " ms"),
        ]
        for name, added in (("first token", cost.ttft), ("each further token", cost.itl))
    ]
    loads = [
        [
            load.num_at_once,
            interval_cell(load.speed_ratio, 2),
            f"{100 * load.cpu_share:.1f} % of one core, {load.cpu_us_per_token:.0f} µs per token",
        ]
        for load in cost.loads
    ]
    return "\n\n".join(
        [
            markdown(["One request at a time", "gRPC", "OpenAI's API", "Added, median"], latencies),
            markdown(["Concurrent requests", "Tokens/s, beside gRPC", "CPU of the front door"], loads),
            f"Greedy, {MAX_TOKENS} tokens, both ways in turn; {cost.num_different} answers differ.",
        ]
    )


def cpu_seconds(process_id: int) -> float:
    """Return the CPU time of a process so far, user and system."""
    stat = Path(f"/proc/{process_id}/stat").read_text(encoding="ascii")
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def connected(address: str, openai_port: int, num_workers: int) -> Iterator[Workers]:
    """Connect workers that ask ``router`` over gRPC, or the front door for the model of ``OPENAI``."""
    with contextlib.ExitStack() as stack:
        asks = []
        for _ in range(num_workers):
            direct = stack.enter_context(Client.connect(address))
            door = stack.enter_context(contextlib.closing(CompletionsClient(HOST, openai_port)))
            asks.append(_ask_of(direct, door))
        yield Workers(asks)


def _ask_of(direct: Client, door: CompletionsClient) -> Ask:
    def ask(request: CompletionRequest, model: str) -> Generation:
        if model == OPENAI.model:
            return door.generate(request)
        return direct.stream(request, model).result()

    return ask


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


def _measure_server(options: argparse.Namespace, command_line: list[str]) -> Result:
    prompts, prompt_set = drawn_prompts(options, NUM_PROMPTS)
    directory = run_directory(options.recipe)
    with Server.start(directory, Ports.free(with_openai=True)) as server, known_key(directory):
        say(f"starting a server; log {server.log}")
        server.wait_ready()
        address = f"grpc://{HOST}:{server.ports.grpc}"
        about = server_conditions("benchmarks.front_door", command_line, options.recipe, address, prompts)
        process_id = front_door_of(server)
        with connected(address, server.ports.openai, max(CONCURRENCY)) as workers:
            cost = measure(prompt_set, options.repetitions, workers, lambda: cpu_seconds(process_id))
    document = {"max_tokens": MAX_TOKENS, **asdict(cost), "conditions": about}
    return Result(table(cost), document, EXIT_FAIL if cost.num_different else EXIT_PASS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = parser_of("benchmarks.front_door", __doc__ or "", "demo-large")
    parser.add_argument(
        "--repetitions", type=whole_number(2), default=8, help="repetitions of every prompt (%(default)s)"
    )
    return run_benchmark(parser, _measure_server, arguments)


if __name__ == "__main__":
    sys.exit(main())
