"""A machine with known step times and texts of known acceptance, on which the rule is tried."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipelines.speculation.draft_length.acceptance import GAP_EDGES
from pipelines.speculation.draft_length.draft_plan import DraftLength, FixedDraftLength, KeepDrafting
from pipelines.speculation.draft_length.rule import DraftLengths
from pipelines.speculation.draft_length.step_times import StepTimes
from pipelines.speculation.request import Output
from pipelines.speculation.token_ids import NO_TOKENS

# Measured: Qwen2.5-Coder 1.5B and 0.5B on two cores with AVX2 (docs/results/calibration-published.json).
ROWS = (1, 2, 4, 8, 16, 32, 72)
TARGET_S = (0.0532, 0.0577, 0.0673, 0.1192, 0.2200, 0.4502, 1.2362)
DRAFT_S = (0.0136, 0.0165, 0.0204, 0.0404, 0.0605, 0.1172, 0.2951)
# The same on two cores with AVX-512 VNNI.
VNNI_TARGET_S = (0.060, 0.067, 0.073, 0.092, 0.160, 0.280, 0.520)
VNNI_DRAFT_S = (0.019, 0.022, 0.026, 0.033, 0.047, 0.076, 0.150)
OUTSIDE_S = 0.004  # of a step, in this process
FIRST_S = 0.005  # more for the first step of the draft in a round
RATES, SHARES = (0.45, 0.65, 0.85, 0.96), (0.17, 0.22, 0.26, 0.35)
MAX_DRAFT_LEN = 8

Agreement = Callable[[int], float]
"""Maps a round to how well the text suits the draft: 1 as above, 0 not at all."""


@dataclass
class Machine:
    """What steps take, and what was measured of it at start.

    Attributes:
        target_s: Seconds of a step of the target, by ``ROWS``.
        draft_s: The same of the draft.
        timed_target_s: What the server believes at first.
        timed_draft_s: The same of the draft.
        slow_draft: Rounds in which a step of the draft takes ten times as long.
        noise: Standard deviation of the logarithm of what the server sees of each step.
    """

    target_s: Sequence[float] = TARGET_S
    draft_s: Sequence[float] = DRAFT_S
    timed_target_s: Sequence[float] = TARGET_S
    timed_draft_s: Sequence[float] = DRAFT_S
    slow_draft: range = range(0)
    noise: float = 0.0


@dataclass
class Played:
    """The rounds of a run.

    Attributes:
        tokens: Output tokens of each, of all requests.
        seconds: Time of each.
        verified: Verified draft tokens of each, per request.
    """

    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    verified: list[float] = field(default_factory=list)

    def speed(self, begin: int = 0, end: int | None = None) -> float:
        """Return tokens per second of some rounds."""
        return sum(self.tokens[begin:end]) / sum(self.seconds[begin:end])


def play(
    num_requests: int,
    num_rounds: int,
    agreement: Agreement = lambda number: 1.0,
    *,
    fixed: int | None = None,
    machine: Machine | None = None,
    seed: int = 0,
    sees_gaps: bool = True,
    in_one_pass: bool = False,
) -> Played:
    """Play rounds of requests that never end, with the rule or with a fixed length."""
    machine = machine or Machine()
    draft, target = StepTimes(ROWS, machine.timed_draft_s), StepTimes(ROWS, machine.timed_target_s)
    lengths = DraftLengths(draft, target, MAX_DRAFT_LEN, in_one_pass=in_one_pass)
    requests: list[DraftLength] = [
        lengths.begin(NO_TOKENS, sees_gaps=sees_gaps) if fixed is None else FixedDraftLength(fixed)
        for _ in range(num_requests)
    ]
    played, position = Played(), 0
    noise = np.random.default_rng(seed)
    num_reread = dict.fromkeys(requests, 0)
    for number in range(num_rounds):
        # All ways of drafting get the same random numbers, so that nothing else differs.
        luck = np.random.default_rng((seed, number)).random((num_requests, MAX_DRAFT_LEN, 2)).tolist()
        rows, pass_rows, num_tokens, seconds = 0, 0, 0, 0.0
        num_drafting = [0] * MAX_DRAFT_LEN
        for request, draws in zip(requests, luck, strict=True):
            plan = request.next_round(1_000_000)
            position += 100  # tokens never repeat, so there is nothing to look up
            drafted, num_right = _draft(
                draws[: plan.max_tokens], plan.keep_drafting, agreement(number), position, sees_gaps
            )
            proposal = plan.complete(drafted if plan.max_tokens else None)
            num_accepted = min(num_right, len(proposal.token_ids))
            own = np.full(1, position + 99, np.int32)
            request.observe(proposal, np.concatenate((proposal.token_ids[:num_accepted], own)))
            for step in range(len(drafted.token_ids)):
                num_drafting[step] += 1
            if len(drafted.token_ids):
                pass_rows += len(drafted.token_ids) + num_reread[request]
            num_reread[request] = num_accepted
            rows += 1 + len(proposal.token_ids)
            num_tokens += 1 + num_accepted
        slowdown = 10.0 if number in machine.slow_draft else 1.0
        steps = [pass_rows] if in_one_pass else num_drafting
        for step, step_rows in enumerate(filter(None, steps)):
            step_s = slowdown * float(np.interp(step_rows, ROWS, machine.draft_s)) + FIRST_S * (step == 0)
            draft.observe(step_rows, step_s * noise.lognormal(0, machine.noise))
            seconds += step_s
        step_s = float(np.interp(rows, ROWS, machine.target_s)) + OUTSIDE_S
        target.observe(rows, step_s * noise.lognormal(0, machine.noise))
        played.tokens.append(num_tokens)
        played.seconds.append(seconds + step_s)
        played.verified.append(rows / num_requests - 1)
    return played


def _draft(
    draws: list[list[float]],
    keep_drafting: KeepDrafting | None,
    agreement: float,
    begin: int,
    sees_gaps: bool,
) -> tuple[Output, int]:
    """Draft tokens as the text has them, or wrong ones; return how many leading ones are right."""
    cumulative = np.cumsum(SHARES)[:-1].tolist()
    gaps, is_right = [], []
    for which, whether in draws:
        gap_class = bisect(cumulative, which)
        gaps.append((0.0, *GAP_EDGES)[gap_class] + 0.01)
        is_right.append(whether < RATES[gap_class] * agreement)
        if keep_drafting is not None and not keep_drafting(gaps[-1]):
            break
    num_right = is_right.index(False) if False in is_right else len(is_right)
    token_ids = np.where(is_right, np.arange(begin, begin + len(is_right)), 0).astype(np.int32)
    seen = np.array(gaps, np.float32) if sees_gaps else None
    return Output(token_ids, "length", True, gaps=seen), num_right
