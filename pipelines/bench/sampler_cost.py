"""What choosing tokens costs, against the step of the target that gives the logits.

``python -m pipelines.bench.sampler_cost --engine engines/demo-large/target-...`` measures both in turn on
the real engine and its real logits: steps of 8 requests, plain and with 4 draft tokens each. The last
line of standard output is JSON. Exit codes: 0 measured; 1 the engine cannot be used; 2 wrong usage.
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

from pipelines.conditions import conditions, engine_conditions
from pipelines.errors import DraftproofError
from pipelines.executor.engine import Engine
from pipelines.executor.step import Chunk, StepInputs, pack
from pipelines.speculation.request import GenerationRequest
from pipelines.speculation.sampler import Sampler
from pipelines.speculation.sampling_params import SamplingParams

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
    """One setting at one size of step.

    Attributes:
        setting: Key of ``SETTINGS``.
        num_rows: Logits of the step, each turned into a token.
        sampler_ms: To choose all of them; median.
        step_ms: Of the engine's step; median.
    """

    setting: str
    num_rows: int
    sampler_ms: float
    step_ms: float

    @property
    def share(self) -> float:
        """Sampler over step."""
        return self.sampler_ms / self.step_ms


def measure_sampler_cost(engine: Engine) -> list[SamplerCost]:
    """Time engine and sampler in turn.

    Args:
        engine: With room for the rows; its cache's content is lost.
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
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.bench.sampler_cost", description=__doc__)
    parser.add_argument("--engine", type=Path, required=True, help="folder of the target's engine")
    options = parser.parse_args(arguments)
    num_blocks = 2 + NUM_REQUESTS * 5 * (CONTEXT // 16)
    try:
        costs = measure_sampler_cost(Engine(options.engine, num_blocks))
    except DraftproofError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for cost in costs:
        print(
            f"{cost.num_rows:>3} rows, {cost.setting:<16} sampler {cost.sampler_ms:6.2f} ms, "
            f"step {cost.step_ms:6.2f} ms: {cost.share:.1%}"
        )
    command_line = sys.argv[1:] if arguments is None else list(arguments)
    context = conditions(
        "pipelines.bench.sampler_cost", command_line, engines=engine_conditions({"target": options.engine})
    )
    costs_document = [{**asdict(cost), "share": cost.share} for cost in costs]
    print(json.dumps({"sampler": costs_document, "conditions": context}))
    return 0


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
    """Seconds of a step, and of turning all its logits into tokens."""
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
