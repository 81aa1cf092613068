"""Time the steps of a pair, and its answers at stated acceptance rates beside the target alone."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rehearsal.steering import SteeredEngine
from build.rendering.template_values import calibration_file
from pipelines.calibration.step_times import StepTime, busy_share, time_step
from pipelines.errors import EngineFailedError
from pipelines.executor.engine import Engine, StepEngine
from pipelines.executor.executor import Executor
from pipelines.executor.limits import ExecutorLimits
from pipelines.executor.row_budget import RowBudget
from pipelines.executor.step import Chunk, pack
from pipelines.executor.step_loop import StepLoop
from pipelines.manifest import EngineFiles
from pipelines.speculation.draft_length.adaptive import DraftLengths
from pipelines.speculation.draft_length.calibration import Calibration
from pipelines.speculation.draft_length.step_costs import StepCosts
from pipelines.speculation.draft_length.survival import NUM_CLASSES, AcceptanceByMargin
from pipelines.speculation.loop import speculate
from pipelines.speculation.request import GenerationRequest
from pipelines.speculation.token_ids import Logits, TokenIds
from pipelines.text.token_map import TOKEN_MAP_FILE, TokenMap
from pipelines.text.vocabulary import Vocabulary

ROWS = (1, 2, 5, 9)
RATES = (0.6, 0.75, 0.9)
MAX_DRAFT_LEN = 8
CONTEXT_TOKENS = 64
NUM_BLOCKS = 64

_LIMITS = ExecutorLimits(
    max_batch_size=1, max_num_tokens=512, max_seq_len=512, max_queue_size=1, num_kv_blocks=NUM_BLOCKS
)


@dataclass(frozen=True)
class Answer:
    """One answer.

    Attributes:
        token_ids: Output tokens.
        seconds_per_token: From the first token to the last, so without the prompt.
        num_drafted: Verified draft tokens.
        num_accepted: Accepted draft tokens.
        num_rejected: Rejected draft tokens, of which a round has at most one: those behind it are not judged.
        num_rounds: Steps of the target.
    """

    token_ids: tuple[int, ...]
    seconds_per_token: float
    num_drafted: int = 0
    num_accepted: int = 0
    num_rejected: int = 0
    num_rounds: int = 0


class LoadedPair:
    """Both engines of a pair in this process, with the loop and the controller of a server.

    Args:
        draft_dir: Engine directory of the draft.
        target_dir: Engine directory of the target; the pair has been calibrated.
        folder: Folder for the weights (``pipelines.executor.weights.Weights``).
    """

    def __init__(self, draft_dir: Path, target_dir: Path, folder: Path) -> None:
        self._calibration = Calibration.read(calibration_file(draft_dir, target_dir))
        files = {"draft": EngineFiles(draft_dir), "target": EngineFiles(target_dir)}
        self.engines = {role: Engine(each, NUM_BLOCKS, weights_folder=folder) for role, each in files.items()}
        self._steered = SteeredEngine(self.engines["draft"])
        self._draft = _executor(files["draft"], self._steered)
        self._target = _executor(files["target"], self.engines["target"])
        self._loop = StepLoop((self._draft, self._target))
        self._costs = {
            role: StepCosts(
                measured.rows,
                measured.seconds,
                measured.seconds_per_position,
                is_estimate=self._calibration.was_busy,
            )
            for role, measured in (("draft", self._calibration.draft), ("target", self._calibration.target))
        }
        self._lengths = {rate: self._controller(rate) for rate in RATES}

    def start(self) -> None:
        """Start the loop; steps can be timed only before."""
        self._size_steps(lambda: self._lengths[RATES[0]].tokens_per_s)
        for executor in (self._draft, self._target):
            executor.warm_up()
        self._loop.start()

    def stop(self) -> None:
        """Stop the loop."""
        self._loop.stop()

    def alone(self, prompt: TokenIds, num_tokens: int) -> Answer:
        """Answer by the target alone."""

        async def answer() -> Answer:
            times, token_ids = [], []
            async for output in self._target.generate(_request(prompt, num_tokens)):
                times += [time.perf_counter()] * len(output.token_ids)
                token_ids += output.token_ids.tolist()
            return Answer(tuple(token_ids), _per_token(times), num_rounds=len(times))

        return self._loop.spawn(answer()).result()

    def steered(self, prompt: TokenIds, expected: Answer, rate: float, seed: int) -> Answer:
        """Answer with the draft at an acceptance rate.

        Args:
            prompt: int32 [n].
            expected: The answer of the target alone.
            rate: One of ``RATES``.
            seed: Seed of the positions at which the draft is right.

        Raises:
            EngineFailedError: The answer is not the target's own.
        """
        lengths = self._lengths[rate]

        async def answer() -> Answer:
            output_ids = np.array(expected.token_ids, np.int32)
            self._steered.follow(output_ids, rate, seed)
            # Without margins, which would be those of a random network, and without lookup, which would
            # change the rate.
            length = lengths.begin(prompt, sees_margins=False)
            self._size_steps(lambda: lengths.tokens_per_s)
            found = Answer((), 0.0)
            times: list[float] = []
            async for part in speculate(
                _request(prompt, len(output_ids)),
                self._steered.proposing(self._draft.complete),
                self._target.complete,
                length,
                stream=self._target.generate,
            ):
                times += [time.perf_counter()] * len(part.token_ids)
                found = replace(
                    found,
                    token_ids=found.token_ids + tuple(part.token_ids.tolist()),
                    num_drafted=found.num_drafted + part.num_draft_tokens,
                    num_accepted=found.num_accepted + part.num_accepted_tokens,
                    num_rejected=found.num_rejected + (part.num_accepted_tokens < part.num_draft_tokens),
                    num_rounds=found.num_rounds + 1,
                )
            lengths.end(length)
            return replace(found, seconds_per_token=_per_token(times))

        found = self._loop.spawn(answer()).result()
        if found.token_ids != expected.token_ids:
            raise EngineFailedError(
                "the loop and the target alone have answered differently",
                values=f"{found.token_ids} and {expected.token_ids}",
                limit="every token is equal",
                remedy="keep the engines and compare their steps with benchmarks.families",
            )
        return found

    def _controller(self, rate: float) -> DraftLengths:
        """Return the controller of a server that was calibrated with this acceptance rate."""
        acceptance = AcceptanceByMargin((rate,) * NUM_CLASSES, (1 / NUM_CLASSES,) * NUM_CLASSES)
        return DraftLengths(acceptance, self._costs["draft"], self._costs["target"], MAX_DRAFT_LEN)

    def _size_steps(self, tokens_per_s: Callable[[], float]) -> None:
        """Size the steps of both engines as the server does with this throughput."""
        for executor, measured in (
            (self._draft, self._calibration.draft),
            (self._target, self._calibration.target),
        ):
            costs = self._costs[executor.config.role]
            executor.budget = RowBudget(costs, measured.change_s, tokens_per_s)


def _executor(files: EngineFiles, engine: StepEngine) -> Executor:
    vocabulary = Vocabulary.parse(files.read("tokenizer.json"), files.path("tokenizer.json"))
    token_map = None
    if TOKEN_MAP_FILE in files.manifest["files"]:
        token_map = TokenMap.parse(files.read(TOKEN_MAP_FILE), files.path(TOKEN_MAP_FILE))
    return Executor(engine, vocabulary, _LIMITS, token_map)


def _request(prompt: TokenIds, num_tokens: int) -> GenerationRequest:
    return GenerationRequest("rehearsal", prompt, num_tokens)


def _per_token(times: Sequence[float]) -> float:
    later = [moment for moment in times if moment > times[0]]
    return (times[-1] - times[0]) / len(later)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return median, smallest and largest value."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def time_steps(pair: LoadedPair, num_turns: int) -> dict[str, Any]:
    """Time steps of both engines with each number of rows, in turn.

    Returns:
        Milliseconds by role and number of rows, and ``busy_share``: the share of their time that the threads
        waited for a core.
    """
    steps: dict[tuple[str, int], partial[Logits]] = {}
    for role, engine in pair.engines.items():
        for rows in ROWS:
            ids = np.arange(1, rows + 1, dtype=np.int32)
            blocks = tuple(range(1, 5))
            chunk = Chunk(ids, CONTEXT_TOKENS, blocks, as_rows=True, num_logits=rows)
            inputs = pack([chunk], engine.config.kv_block_size)
            steps[role, rows] = partial(engine.step, inputs)
    found: dict[tuple[str, int], list[StepTime]] = {each: [] for each in steps}
    for _ in range(num_turns):
        for each, step in steps.items():
            step()  # a step after another shape takes longer
            found[each].append(time_step(step))
    milliseconds: dict[str, Any] = {
        role: {rows: spread([1e3 * step.wall_s for step in found[role, rows]]) for rows in ROWS}
        for role in pair.engines
    }
    return {**milliseconds, "busy_share": busy_share(step for each in found.values() for step in each)}


def time_answers(
    pair: LoadedPair, num_turns: int, num_tokens: int, report: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Answer prompts by the target alone and at each acceptance rate, in turn.

    Args:
        pair: The pair, started.
        num_turns: Prompts.
        num_tokens: Tokens of each answer.
        report: Called with a line for each prompt.

    Returns:
        An entry for the target alone, then one for each rate, with milliseconds per token, speed-up beside
        the target alone in the same turn, and what was accepted.
    """
    rng = np.random.default_rng(0)
    answers: dict[float | None, list[Answer]] = {None: [], **{rate: [] for rate in RATES}}
    for turn in range(num_turns):
        prompt = rng.integers(1, pair.engines["target"].config.vocab_size, CONTEXT_TOKENS).astype(np.int32)
        expected = pair.alone(prompt, num_tokens)
        answers[None].append(expected)
        for rate in RATES:
            answers[rate].append(pair.steered(prompt, expected, rate, seed=turn))
        paces = {rate: 1e3 * found[-1].seconds_per_token for rate, found in answers.items()}
        report(", ".join(f"{rate or 'alone'}: {pace:.0f} ms per token" for rate, pace in paces.items()))
    return [_entry(rate, found, answers[None]) for rate, found in answers.items()]


def _entry(rate: float | None, found: Sequence[Answer], alone: Sequence[Answer]) -> dict[str, Any]:
    counts = ("num_drafted", "num_accepted", "num_rejected", "num_rounds")
    pairs = zip(alone, found, strict=True)
    return {
        "rate": rate,
        "ms_per_token": spread([1e3 * answer.seconds_per_token for answer in found]),
        "speed_up": spread([before.seconds_per_token / after.seconds_per_token for before, after in pairs]),
        **{name: sum(getattr(answer, name) for answer in found) for name in counts},
        "num_tokens": sum(len(answer.token_ids) for answer in found),
    }
