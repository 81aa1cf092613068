"""Measure the cost of sampling tokens relative to the step of the target that computes the logits.

``python -m benchmarks.sampler_cost --engine engines/demo-large/target-...`` times the engine and the sampler
on the engine's logits alternately, in steps of 8 requests without draft tokens and with 4 of them. The last
line of standard output is JSON. Exit codes: 0 success; 1 the engine cannot be used; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from pipelines.bench.reporting.conditions import conditions, engine_conditions
from pipelines.executor.engine import Engine
from pipelines.executor.step import Chunk, StepInputs, pack
from pipelines.manifest import EngineFiles
from pipelines.program import EXIT_PASS, run_program
from pipelines.speculation.request import GenerationRequest
from pipelines.speculation.sampling.params import SamplingParams
from pipelines.speculation.sampling.sampler import Sampler

NUM_REQUESTS = 8
CONTEXT = 128
REPETITIONS = 15
SETTINGS = {
    "greedy": SamplingParams(),
    "temperature": SamplingParams(temperature=0.8),
    "every parameter": SamplingParams(
        temperature=0.8,
        top_k=50,
        top_p=0.9,
        min_p=0.02,
        repetition_penalty=1.1,
        presence_penalty=0.5,
        frequency_penalty=0.2,
        logit_bias=((5, 1.0),),
    ),
}


@dataclass(frozen=True)
class SamplerCost:
    """Cost of one setting at one size of step.

    Attributes:
        setting: Key of ``SETTINGS``.
        num_rows: Rows of logits in the step, each of which gives a token.
        sampler_ms: Median time of sampling all rows.
        step_ms: Median time of the engine's step.
    """

    setting: str
    num_rows: int
    sampler_ms: float
    step_ms: float

    @property
    def share(self) -> float:
        """Return the sampling time divided by the time of the step."""
        return self.sampler_ms / self.step_ms


def measure_sampler_cost(engine: Engine) -> list[SamplerCost]:
    """Time engine and sampler alternately.

    Args:
        engine: An engine with enough KV blocks for the rows; their content is overwritten.
    """
    found = []
    for num_rows in (NUM_REQUESTS, NUM_REQUESTS * 5):
        inputs = _inputs(engine, num_rows)
        engine.step(inputs)
        for setting, sampling in SETTINGS.items():
            times = [_time_once(engine, inputs, sampling) for _ in range(REPETITIONS)]
            step_s, sampler_s = (statistics.median(column) for column in zip(*times, strict=True))
            found.append(SamplerCost(setting, num_rows, sampler_s * 1e3, step_s * 1e3))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sampler_cost", description=__doc__)
    parser.add_argument("--engine", type=Path, required=True, help="directory of the target's engine")
    options = parser.parse_args(arguments)
    command_line = sys.argv[1:] if arguments is None else list(arguments)
    return run_program(lambda: _measure_and_print(options.engine, command_line))


def _measure_and_print(engine: Path, command_line: list[str]) -> int:
    num_blocks = 2 + NUM_REQUESTS * 5 * (CONTEXT // 16)
    costs = measure_sampler_cost(Engine(EngineFiles(engine), num_blocks))
    for cost in costs:
        print(
            f"{cost.num_rows:>3} rows, {cost.setting:<16} sampler {cost.sampler_ms:6.2f} ms, "
            f"step {cost.step_ms:6.2f} ms: {cost.share:.1%}"
        )
    context = conditions(
        "benchmarks.sampler_cost", command_line, engines=engine_conditions({"target": engine})
    )
    costs_document = [{**asdict(cost), "share": cost.share} for cost in costs]
    print(json.dumps({"sampler": costs_document, "conditions": context}))
    return EXIT_PASS


def _inputs(engine: Engine, num_rows: int) -> StepInputs:
    block_size = engine.config.kv_block_size
    rows_each = num_rows // NUM_REQUESTS
    num_blocks = -(-(CONTEXT + rows_each) // block_size)
    chunks = [
        Chunk(
            np.arange(1, rows_each + 1, dtype=np.int32),
            CONTEXT,
            range(1 + request * num_blocks, 1 + (request + 1) * num_blocks),
            as_rows=True,
            num_logits=rows_each,
        )
        for request in range(NUM_REQUESTS)
    ]
    return pack(chunks, block_size)


def _sampler(sampling: SamplingParams, row: int, vocab_size: int) -> Sampler:
    prompt = np.arange(row, row + CONTEXT, dtype=np.int32) % vocab_size
    return Sampler(GenerationRequest("bench", prompt, 1, sampling=sampling), vocab_size)


def _time_once(engine: Engine, inputs: StepInputs, sampling: SamplingParams) -> tuple[float, float]:
    """Return the seconds of a step, and of sampling all its rows."""
    started_s = time.perf_counter()
    logits = engine.step(inputs)
    step_s = time.perf_counter() - started_s
    samplers = [_sampler(sampling, row, engine.config.vocab_size) for row in range(len(logits))]
    started_s = time.perf_counter()
    for sampler, row_logits in zip(samplers, logits, strict=True):
        sampler.choose(row_logits)
    return step_s, time.perf_counter() - started_s


if __name__ == "__main__":
    sys.exit(main())
