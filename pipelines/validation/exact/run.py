"""Run the token-by-token proof on a server: its sizes, the limits of the server, and its progress."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass

from pipelines.client import Client
from pipelines.command_line.options import Progress
from pipelines.command_line.prompts import Prompt
from pipelines.errors import VerificationError
from pipelines.text.vocabulary import Vocabulary
from pipelines.validation.exact.differences import explain, side_by_side
from pipelines.validation.exact.plan import LOADS, DraftLength, Goal, ProofPlan, passes_of, questions_of
from pipelines.validation.exact.proof import PassResult, Schedule, prove
from pipelines.validation.exact.sampling_kinds import GREEDY, KINDS
from pipelines.validation.exact.sections import PASS_COLUMNS, exact_sections, pass_row
from pipelines.validation.exact.verdict import Proof
from pipelines.validation.report import Report, table_line

_NUM_SHOWN = 20  # divergences that are explained and shown side by side
_PASS_WIDTHS = (20, 72, 7, 7, 6, 7, 8, 7, 7)
_MEAN_GAP_S = 0.1


@dataclass(frozen=True)
class Size:
    """Size of a proof.

    Attributes:
        num_prompts: Number of different prompts, if there are as many.
        max_tokens: Most output tokens per answer.
        num_cold: As in ``ProofPlan``.
        num_alone: As in ``ProofPlan``.
        num_for_distribution: Number of prompts with many unseeded answers each; 0 skips that part, because
            fewer answers would show nothing.
        goal: As in ``ProofPlan``.
    """

    num_prompts: int
    max_tokens: int
    num_cold: int
    num_alone: int
    num_for_distribution: int
    goal: Goal


RELEASE = Size(320, 128, 8, 40, 8, Goal(max_rate=0.01, num_tokens=200_000))
QUICK = Size(24, 16, 2, 4, 0, Goal(max_rate=0.125, num_tokens=0))

LEAST_PROMPTS = 2
"""Half of the prompts are asked with default parameters, and half with others."""


@dataclass(frozen=True)
class Limits:
    """Limits of a server.

    Attributes:
        max_draft_len: Most draft tokens per round.
        max_requests: Most requests that run and wait.
        default_draft_length: Default draft length, as its answers report it.
        kinds: Kinds of sampling for which it drafts. TensorRT-LLM's engines draft for greedy requests only:
            other requests are answered by the target alone or have no equal there.
    """

    max_draft_len: int
    max_requests: int
    default_draft_length: str
    kinds: tuple[str, ...] = KINDS


def read_limits(parameters: Mapping[str, str], default_draft_length: str) -> Limits:
    """Read the parameters of the model ``speculative``.

    Args:
        parameters: Parameters of the loaded model.
        default_draft_length: As in ``Limits``; no parameter, because it can change while the server runs.

    Raises:
        VerificationError: A parameter is missing or invalid.
    """
    try:
        return Limits(
            int(parameters["max_draft_len"]),
            int(parameters["max_batch_size"]) + int(parameters["max_queue_size"]),
            default_draft_length,
            (GREEDY,) if parameters.get("engine_access") == "tensorrt_llm" else KINDS,
        )
    except (KeyError, ValueError) as error:
        raise VerificationError(
            "the limits of the server cannot be read",
            values=f"{error!r} in the parameters of the model speculative",
            limit="whole numbers for max_draft_len, max_batch_size and max_queue_size",
            remedy="render the model repository again with 'draftproof repository'",
        ) from error


def plan_of(size: Size, prompts: tuple[Prompt, ...], limits: Limits) -> ProofPlan:
    """Build the plan of a size for a server, without loads that it would refuse."""
    # Corpora alternate in file order; shuffling puts all of them into each half of the prompts.
    shuffled = random.Random(0).sample(prompts, len(prompts))
    return ProofPlan(
        prompts=tuple(shuffled),
        max_tokens=size.max_tokens,
        draft_lengths=(
            *(DraftLength(number, str(number)) for number in range(limits.max_draft_len + 1)),
            DraftLength(None, limits.default_draft_length),
        ),
        loads=tuple(load for load in LOADS if load < limits.max_requests),  # leaves room for cancellations
        num_cold=size.num_cold,
        num_alone=size.num_alone,
        mean_gap_s=_MEAN_GAP_S,
        goal=size.goal,
        kinds=limits.kinds,
    )


def run_exact(
    size: Size,
    prompts: tuple[Prompt, ...],
    limits: Limits,
    client: Client,
    vocabulary: Vocabulary | None,
    nonce: str,
) -> Report:
    """Run the proof and explain the differences.

    Args:
        size: Size of the proof.
        prompts: Prompts, ``size.num_prompts`` of them.
        limits: Limits of the server.
        client: Client of the server.
        vocabulary: Vocabulary of the target; None if it is not on this machine.
        nonce: Text that no earlier run on this server used.
    """
    plan = plan_of(size, prompts, limits)
    schedule = {asked: questions_of(plan, asked, nonce) for asked in passes_of(plan)}
    display = _Display(plan, schedule)
    proof = Proof(prove(plan, schedule, nonce, client, display.on_answer, display.on_pass), plan.goal)
    display.line.show("explaining the first differences")
    divergences = [
        side_by_side(finding, explain(finding, client), vocabulary) for finding in proof.findings[:_NUM_SHOWN]
    ]
    display.line.clear()
    return Report(tuple(exact_sections(proof, divergences)), tuple(divergences), len(proof.findings))


class _Display:
    """Prints a row for each pass, with its place and the time left, and a progress line meanwhile."""

    def __init__(self, plan: ProofPlan, schedule: Schedule) -> None:
        self.line = Progress()
        self._num_passes = len(schedule)
        self._num_passes_done = self._num_answers_done = 0
        questions = [question.request for of_pass in schedule.values() for question in of_pass]
        self._num_answers = len(questions) + len(set(questions))  # and those of the target alone
        self._begun_s = time.monotonic()
        print(
            f"{len(plan.prompts)} prompts, up to {plan.max_tokens} tokens each, {self._num_passes} passes; "
            "compared with the target alone, which answers one request at a time"
        )
        print(table_line(("", *PASS_COLUMNS), _PASS_WIDTHS), flush=True)

    def on_answer(self, name: str, num_done: int) -> None:
        self._num_answers_done += 1
        self.line.show(f"{self._place()} {name}")

    def on_pass(self, result: PassResult) -> None:
        self.line.clear()
        print(table_line((self._place(), *pass_row(result)), _PASS_WIDTHS), flush=True)
        self._num_passes_done += 1

    def _place(self) -> str:
        seconds = time.monotonic() - self._begun_s
        left_s = seconds * (self._num_answers / self._num_answers_done - 1)
        left = f"{left_s:.0f} s" if left_s < 90 else f"{left_s / 60:.0f} min"
        return f"[{self._num_passes_done + 1}/{self._num_passes}, {left} left]"
