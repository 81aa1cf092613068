"""Run the token-by-token proof on a server: the limits of the server, and its progress."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from pipelines.client import Client
from pipelines.command_line.options import Progress
from pipelines.command_line.prompts import Prompt
from pipelines.errors import VerificationError
from pipelines.text.vocabulary import Vocabulary
from pipelines.time_left import place
from pipelines.validation.exact.differences import explain, side_by_side
from pipelines.validation.exact.plan import LOADS, DraftLength, ProofPlan
from pipelines.validation.exact.proof import PassResult, prove
from pipelines.validation.exact.sampling_kinds import GREEDY, KINDS
from pipelines.validation.exact.sections import PASS_COLUMNS, exact_sections, pass_row
from pipelines.validation.exact.timetable import Timetable
from pipelines.validation.exact.verdict import Proof
from pipelines.validation.report import Report, table_line
from pipelines.validation.size import MOST_TOKENS, Size
from pipelines.validation.stopping import stop_error

_NUM_SHOWN = 20  # divergences that are explained and shown side by side
_PASS_WIDTHS = (20, 72, 7, 7, 6, 7, 8, 7, 7)
_MEAN_GAP_S = 0.1
_MAX_RATE, _QUICK_MAX_RATE = 0.01, 0.25

LEAST_PROMPTS = 2
"""Half of the prompts are asked with default parameters, and half with others."""


@dataclass(frozen=True)
class Limits:
    """Limits of a server.

    Attributes:
        max_draft_len: Most draft tokens per round.
        max_requests: Most requests that run and wait.
        default_draft_length: Default draft length, as its answers report it.
        most_tokens: Most output tokens of an answer for which there is room beside prompts.
        kinds: Kinds of sampling for which it drafts. TensorRT-LLM's engines draft for greedy requests only:
            other requests are answered by the target alone or have no equal there.
    """

    max_draft_len: int
    max_requests: int
    default_draft_length: str
    most_tokens: int = MOST_TOKENS
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
            min(MOST_TOKENS, int(parameters.get("max_seq_len", 4 * MOST_TOKENS)) // 4),
            (GREEDY,) if parameters.get("engine_access") == "tensorrt_llm" else KINDS,
        )
    except (KeyError, ValueError) as error:
        raise VerificationError(
            f"the limits of the server cannot be read: {error!r} in the parameters of the model speculative",
            "render the model repository again with 'draftproof repository'",
        ) from error


def plan_of(prompts: tuple[Prompt, ...], limits: Limits, *, is_quick: bool) -> ProofPlan:
    """Build the plan for a server, without loads that it would refuse."""
    # Corpora alternate in file order; shuffling puts all of them into each half of the prompts.
    shuffled = random.Random(0).sample(prompts, len(prompts))
    return ProofPlan(
        prompts=tuple(shuffled),
        default_length=DraftLength.of_server(limits.default_draft_length),
        fixed_lengths=DraftLength.all_fixed(limits.max_draft_len),
        loads=tuple(load for load in LOADS if load < limits.max_requests),  # leaves room for cancellations
        most_tokens=limits.most_tokens,
        mean_gap_s=_MEAN_GAP_S,
        max_rate=_QUICK_MAX_RATE if is_quick else _MAX_RATE,
        kinds=limits.kinds,
    )


def run_exact(
    size: Size,
    ends_at_s: float,
    prompts: tuple[Prompt, ...],
    limits: Limits,
    client: Client,
    vocabulary: Vocabulary | None,
    nonce: str,
) -> Report:
    """Run the proof and explain the differences.

    Args:
        size: What the user chose.
        ends_at_s: Clock time at which it ends, in seconds of ``time.monotonic``.
        prompts: Prompts to ask.
        limits: Limits of the server.
        client: Client of the server.
        vocabulary: Vocabulary of the target; None if it is not on this machine.
        nonce: Text that no earlier run on this server used.
    """
    plan = plan_of(prompts, limits, is_quick=size.is_quick)
    timetable = Timetable(plan, size, ends_at_s, nonce)
    display = _Display(timetable)
    results = prove(plan, timetable, nonce, client, display.on_answer, display.on_pass)
    proof = Proof(results, plan.max_rate, timetable.max_tokens, stop_error())
    display.line.show("explaining the first differences")
    divergences = [
        side_by_side(finding, explain(finding, client), vocabulary) for finding in proof.findings[:_NUM_SHOWN]
    ]
    display.line.clear()
    return Report(tuple(exact_sections(proof, divergences)), tuple(divergences), len(proof.findings))


class _Display:
    """Prints a row for each pass, with its place and the time left, and a progress line meanwhile."""

    def __init__(self, timetable: Timetable) -> None:
        self.line = Progress()
        self._timetable = timetable
        print(
            f"{timetable.num_least} passes, or more while there is time; every answer is compared with that "
            "of the target alone, which answers one request at a time; the speed of the server decides how "
            "much is asked"
        )
        print(table_line(("", *PASS_COLUMNS), _PASS_WIDTHS), flush=True)

    def on_answer(self, name: str, num_done: int, num_all: int) -> None:
        self.line.show(f"{self._place()} {name}: {num_done} of {num_all}")

    def on_pass(self, result: PassResult) -> None:
        self.line.clear()
        print(table_line((self._place(), *pass_row(result)), _PASS_WIDTHS), flush=True)

    def _place(self) -> str:
        num_begun, num_least = self._timetable.num_begun, self._timetable.num_least
        return place(num_begun, max(num_begun, num_least), self._timetable.left_s)
