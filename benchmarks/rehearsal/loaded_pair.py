"""Both engines of a pair in this process, which answers beside the target alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.rehearsal.steering import SteeredEngine
from benchmarks.rehearsal.timed_engine import TimedEngine
from build.rendering.template_values import calibration_file
from pipelines.errors import EngineFailedError
from pipelines.executor.engine import Engine, StepEngine
from pipelines.executor.executor import Executor
from pipelines.executor.lane import Work
from pipelines.executor.limits import ExecutorLimits
from pipelines.executor.prompt_pace import PromptPace
from pipelines.executor.rows.budget import RowBudget
from pipelines.executor.step_loop import StepLoop
from pipelines.manifest import EngineFiles
from pipelines.speculation.draft_length.adaptive import DraftLengths
from pipelines.speculation.draft_length.calibration import Calibration
from pipelines.speculation.draft_length.draft_plan import DraftLength, FixedDraftLength
from pipelines.speculation.draft_length.step_costs import StepCosts
from pipelines.speculation.draft_length.survival import NUM_CLASSES, AcceptanceByMargin
from pipelines.speculation.loop import speculate
from pipelines.speculation.request import GenerationRequest
from pipelines.speculation.token_ids import NO_TOKENS, TokenIds
from pipelines.text.token_map import TOKEN_MAP_FILE, TokenMap
from pipelines.text.vocabulary import Vocabulary

MAX_DRAFT_LEN = 8

_Moment = tuple[float, float]
"""Seconds of the wall clock, and of CPU time."""


@dataclass(frozen=True)
class Answer:
    """One answer.

    Attributes:
        token_ids: Output tokens.
        seconds_per_token: From the first token to the last, so without the prompt.
        cpu_seconds_per_token: The same in CPU time: of the busiest thread in steps of the engines, and of the
            loop between them.
        num_drafted: Verified draft tokens.
        num_accepted: Accepted draft tokens.
        num_rejected: Rejected draft tokens, of which a round has at most one: those behind it are not judged.
        num_rounds: Steps of the target.
    """

    token_ids: tuple[int, ...]
    seconds_per_token: float
    cpu_seconds_per_token: float
    num_drafted: int = 0
    num_accepted: int = 0
    num_rejected: int = 0
    num_rounds: int = 0


class _WholeChunks(PromptPace):
    """Read prompts in the largest steps, since no other request waits."""

    def fit(self, work: Sequence[Work]) -> list[Work]:
        """Return the planned step."""
        return list(work)


class LoadedPair:
    """Both engines of a pair in this process, with the loop and the controller of a server.

    Args:
        draft_dir: Engine directory of the draft.
        target_dir: Engine directory of the target; the pair has been calibrated.
        folder: Folder for the weights (``pipelines.executor.weights.Weights``).
        limits: Limits of both executors.
        rates: Acceptance rates of ``steered``.
    """

    def __init__(
        self,
        draft_dir: Path,
        target_dir: Path,
        folder: Path,
        limits: ExecutorLimits,
        rates: Sequence[float],
    ) -> None:
        self._calibration = Calibration.read(calibration_file(draft_dir, target_dir))
        files = {"draft": EngineFiles(draft_dir), "target": EngineFiles(target_dir)}
        self.engines = {
            role: Engine(each, limits.num_kv_blocks, weights_folder=folder) for role, each in files.items()
        }
        self._timed = {role: TimedEngine(engine) for role, engine in self.engines.items()}
        self._steered = SteeredEngine(self._timed["draft"])
        self._draft = _executor(files["draft"], self._steered, limits)
        self._target = _executor(files["target"], self._timed["target"], limits)
        for executor in (self._draft, self._target):
            executor.pace = _WholeChunks()
        self._loop = StepLoop((self._draft, self._target))
        self._costs = {
            role: StepCosts.of(measured, is_estimate=self._calibration.was_busy)
            for role, measured in (("draft", self._calibration.draft), ("target", self._calibration.target))
        }
        shares = (1 / NUM_CLASSES,) * NUM_CLASSES
        self._lengths = {
            rate: self._controller(AcceptanceByMargin((rate,) * NUM_CLASSES, shares)) for rate in rates
        }
        measured_acceptance = self._calibration.acceptance_rates, self._calibration.margin_shares
        self._own_lengths = self._controller(AcceptanceByMargin(*measured_acceptance))

    def start(self) -> None:
        """Start the loop; steps can be timed only before."""
        self._size_steps(self._own_lengths)
        for executor in (self._draft, self._target):
            executor.warm_up()
        self._loop.start()

    def stop(self) -> None:
        """Stop the loop."""
        self._loop.stop()

    def alone(self, prompt: TokenIds, num_tokens: int) -> Answer:
        """Answer by the target alone."""

        async def answer() -> Answer:
            times: list[_Moment] = []
            token_ids: list[int] = []
            async for output in self._target.generate(_request(prompt, num_tokens)):
                times += [self._now()] * len(output.token_ids)
                token_ids += output.token_ids.tolist()
            return Answer(tuple(token_ids), *_per_token(times), num_rounds=len(times))

        return self._loop.spawn(answer()).result()

    def read_by_draft(self, prompt: TokenIds) -> None:
        """Let the draft read a prompt, which it otherwise does when it drafts first."""

        async def read() -> None:
            await self._draft.complete(_request(prompt, 1))

        self._steered.follow(NO_TOKENS, 0.0, 0)
        self._loop.spawn(read()).result()

    def steered(self, prompt: TokenIds, expected: Answer, rate: float, seed: int) -> Answer:
        """Answer with the draft at an acceptance rate.

        Args:
            prompt: int32 [n].
            expected: The answer of the target alone.
            rate: One of the pair's.
            seed: Seed of the positions at which the draft is right.

        Raises:
            EngineFailedError: The answer is not the target's own.
        """
        self._steered.follow(np.array(expected.token_ids, np.int32), rate, seed)
        lengths = self._lengths[rate]
        # Without margins, which would be those of a random network, and without lookup, which would change
        # the rate.
        length = lengths.begin(prompt, sees_margins=False)
        found = self._speculated(prompt, expected, length, lengths)
        lengths.end(length)
        return found

    def own(self, prompt: TokenIds, expected: Answer, num_draft_tokens: int | None) -> Answer:
        """Answer with the draft's own proposals.

        Args:
            prompt: int32 [n].
            expected: The answer of the target alone.
            num_draft_tokens: Draft tokens per round; None to let the controller choose, as a server does.

        Raises:
            EngineFailedError: The answer is not the target's own.
        """
        self._steered.follow(NO_TOKENS, 0.0, 0)
        lengths = self._own_lengths
        if num_draft_tokens is not None:
            return self._speculated(prompt, expected, FixedDraftLength(num_draft_tokens), lengths)
        length = lengths.begin(prompt)
        found = self._speculated(prompt, expected, length, lengths)
        lengths.end(length)
        return found

    def _speculated(
        self, prompt: TokenIds, expected: Answer, length: DraftLength, lengths: DraftLengths
    ) -> Answer:
        async def answer() -> Answer:
            self._size_steps(lengths)
            found = Answer((), 0.0, 0.0)
            times: list[_Moment] = []
            async for part in speculate(
                _request(prompt, len(expected.token_ids)),
                self._steered.proposing(self._draft.complete),
                self._target.complete,
                length,
                stream=self._target.generate,
            ):
                times += [self._now()] * len(part.token_ids)
                found = replace(
                    found,
                    token_ids=found.token_ids + tuple(part.token_ids.tolist()),
                    num_drafted=found.num_drafted + part.num_draft_tokens,
                    num_accepted=found.num_accepted + part.num_accepted_tokens,
                    num_rejected=found.num_rejected + (part.num_accepted_tokens < part.num_draft_tokens),
                    num_rounds=found.num_rounds + 1,
                )
            wall_s, cpu_s = _per_token(times)
            return replace(found, seconds_per_token=wall_s, cpu_seconds_per_token=cpu_s)

        found = self._loop.spawn(answer()).result()
        if found.token_ids != expected.token_ids:
            raise EngineFailedError(
                "the loop and the target alone have answered differently",
                values=f"{found.token_ids} and {expected.token_ids}",
                limit="every token is equal",
                remedy="keep the engines and compare their steps with benchmarks.families",
            )
        return found

    def _now(self) -> _Moment:
        """Return the wall clock and the CPU time so far; to be called in the loop's thread."""
        engines = self._timed.values()
        between_steps_s = time.thread_time() - sum(engine.caller_s for engine in engines)
        return time.perf_counter(), between_steps_s + sum(engine.busiest_s for engine in engines)

    def _controller(self, acceptance: AcceptanceByMargin) -> DraftLengths:
        """Return the controller of a server whose calibration has found this acceptance."""
        lengths = DraftLengths(acceptance, self._costs["draft"], self._costs["target"], MAX_DRAFT_LEN)
        lengths.count_read = self._draft.count_cached
        return lengths

    def _size_steps(self, lengths: DraftLengths) -> None:
        """Size the steps of both engines as the server does with this controller."""
        for executor, measured in (
            (self._draft, self._calibration.draft),
            (self._target, self._calibration.target),
        ):
            costs = self._costs[executor.config.role]
            executor.budget = RowBudget(costs, measured.change_s, lambda: lengths.tokens_per_s)


def _executor(files: EngineFiles, engine: StepEngine, limits: ExecutorLimits) -> Executor:
    vocabulary = Vocabulary.parse(files.read("tokenizer.json"), files.path("tokenizer.json"))
    token_map = None
    if TOKEN_MAP_FILE in files.manifest["files"]:
        token_map = TokenMap.parse(files.read(TOKEN_MAP_FILE), files.path(TOKEN_MAP_FILE))
    return Executor(engine, vocabulary, limits, token_map)


def _request(prompt: TokenIds, num_tokens: int) -> GenerationRequest:
    return GenerationRequest("rehearsal", prompt, num_tokens)


def _per_token(times: Sequence[_Moment]) -> tuple[float, float]:
    """Return seconds per token behind those of the first step, by the wall clock and in CPU time."""
    (first_wall, first_cpu), (last_wall, last_cpu) = times[0], times[-1]
    num_later = sum(wall > first_wall for wall, _ in times)
    return (last_wall - first_wall) / num_later, (last_cpu - first_cpu) / num_later
