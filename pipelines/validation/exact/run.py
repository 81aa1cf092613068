"""Run the token-by-token proof on a server: its sizes, the limits of the server, and its progress."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipelines.command_line.options import Progress
from pipelines.command_line.prompts import Prompt
from pipelines.errors import VerificationError
from pipelines.text.vocabulary import Vocabulary
from pipelines.validation.exact.asking import ClientCalls
from pipelines.validation.exact.differences import explain, side_by_side
from pipelines.validation.exact.plan import LOADS, DraftLength, Goal, ProofPlan, passes_of
from pipelines.validation.exact.proof import PassProgress, PassResult, prove
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
    clients: Sequence[ClientCalls],
    vocabulary: Vocabulary | None,
    nonce: str,
) -> Report:
    """Run the proof and explain the differences.

    Args:
        size: Size of the proof.
        prompts: Prompts, ``size.num_prompts`` of them.
        limits: Limits of the server.
        clients: Clients, one more than the greatest load of the plan.
        vocabulary: Vocabulary of the target; None if it is not on this machine.
        nonce: Text that no earlier run on this server used.
    """
    plan = plan_of(size, prompts, limits)
    display = _Display(plan)
    proof = Proof(prove(plan, clients, nonce, display.on_progress, display.on_pass), plan.goal)
    divergences = []
    for finding in proof.findings[:_NUM_SHOWN]:
        display.line.show("explaining the first differences")
        divergences.append(side_by_side(finding, explain(finding, clients[0]), vocabulary))
    display.line.clear()
    return Report(tuple(exact_sections(proof, divergences)), tuple(divergences), len(proof.findings))


class _Display:
    """Prints a row for each pass, with its place and the time left, and a progress line meanwhile."""

    def __init__(self, plan: ProofPlan) -> None:
        self.line = Progress()
        self._num_passes = len(passes_of(plan))
        self._begun_s = time.monotonic()
        self._left = ""
        print(
            f"{len(plan.prompts)} prompts, up to {plan.max_tokens} tokens each, {self._num_passes} passes; "
            "compared with the target alone, which answers one request at a time"
        )
        print(table_line(("", *PASS_COLUMNS), _PASS_WIDTHS), flush=True)

    def on_progress(self, state: PassProgress) -> None:
        seconds = time.monotonic() - self._begun_s
        self._left = _duration(seconds * (state.num_answers / state.num_done - 1))
        what = "reference answers for" if state.is_reference else "running"
        self.line.show(f"{self._place(state.asked.number)} {what} {state.asked}")

    def on_pass(self, result: PassResult) -> None:
        self.line.clear()
        place = self._place(result.asked.number)
        print(table_line((place, *pass_row(result)), _PASS_WIDTHS), flush=True)

    def _place(self, number: int) -> str:
        return f"[{number + 1}/{self._num_passes}, {self._left} left]"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
