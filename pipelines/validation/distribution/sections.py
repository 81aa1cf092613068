"""Judge whether unseeded answers of ``generate`` follow the distribution of the target alone.

Both models answer the same prompts many times without a seed: ``generate`` by each rule of acceptance, and
the target alone twice (A/A). Two tests compare each rule with the target: position by position
(``compare_positions``) and by the Hamming discrepancy (``permutation_p_value``). The same tests on the two
samples of the target show how equal distributions look on this server; if they reject, the results are not
reliable.

Detecting no difference does not prove equality, so a pass also requires the upper bound of the total
variation at every position to be below a limit. Prefixes too rare to be compared, tokens merged as rare, and
positions beyond the first few are not covered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from scipy import special

from pipelines.bench.reporting.section import Section, Table, Verdict
from pipelines.validation.distribution.drawing import Draws
from pipelines.validation.distribution.sequence_tests import (
    PositionTest,
    SamplePair,
    compare_positions,
    permutation_p_value,
)

ALPHA = 1e-3
"""Probability that a correct server fails, over all tests of all rules. A release is judged by one run, so
this is 1 run in 1,000; the sampler itself is tested at 1e-9, where samples are cheap."""
CONFIDENCE = 0.95
LIMIT = 0.1
"""Largest total variation per token that the bound may leave possible."""

_PERMUTATIONS = 9999
_PROBABILITY_OF_SUCCESS = 0.9  # that a correct server passes with the suggested number of answers


@dataclass(frozen=True)
class SampleComparison:
    """All tests of one pair of samples.

    Attributes:
        positions: One test for each position.
        discrepancy_p_value: P-value of the test of all tokens together.
        alpha_each: Level of each test.
    """

    positions: tuple[PositionTest, ...]
    discrepancy_p_value: float
    alpha_each: float

    @property
    def rejections(self) -> list[str]:
        """Tests that reject equal distributions, with their p-values."""
        p_values = {f"token {test.position}": test.p_value for test in self.positions}
        p_values["all tokens together"] = self.discrepancy_p_value
        return [f"{name} (p = {p:.2g})" for name, p in p_values.items() if p <= self.alpha_each]

    @property
    def shares_noise(self) -> bool:
        """Whether the samples agree better than independent ones would."""
        dof = sum(test.dof for test in self.positions)
        statistic = sum(test.statistic for test in self.positions)
        return dof > 0 and float(special.chdtr(dof, statistic)) <= self.alpha_each


def compare(pairs: Sequence[SamplePair], num_families: int) -> SampleComparison:
    """Run all tests on the answers of two models to the same prompts; families share alpha."""
    positions = compare_positions(pairs)
    alpha_each = ALPHA / (num_families * (len(positions) + 1))  # Bonferroni's: known before, so power is too
    return SampleComparison(positions, permutation_p_value(pairs, _PERMUTATIONS), alpha_each)


def judge(draws: Draws, limit: float = LIMIT) -> list[Section]:
    """Compare each candidate with the target alone, and the target with itself.

    Args:
        draws: Answers of all models.
        limit: Largest total variation per token for which the bound passes.

    Returns:
        One section for each candidate.
    """
    itself = None
    if min(draws.target.smallest, draws.again.smallest):
        itself = compare(draws.again.beside(draws.target), len(draws.candidates))
    return [_judge(name, itself, draws, limit) for name in draws.candidates]


def _judge(name: str, itself: SampleComparison | None, draws: Draws, limit: float) -> Section:
    title = f"Distribution without a seed: {name}"
    samples = draws.candidates[name], draws.target, draws.again
    errors = [error for sample in samples for error in sample.errors]
    num_answers = min(sample.smallest for sample in samples)
    if itself is None or num_answers == 0:
        reason = f"there are no answers to compare: {errors[0]}"
        return Section(title, "inconclusive", reason, document=draws.as_document())
    candidate = compare(samples[0].beside(draws.target), len(draws.candidates))
    faults, doubts = draws.seed_faults(), []
    if itself.rejections or itself.shares_noise:
        doubts.append("the target alone differs from itself: its answers are not independent samples")
    elif candidate.rejections:
        faults.append(f"the distribution differs from the target's: {', '.join(candidate.rejections)}")
    elif candidate.shares_noise:
        doubts.append(
            "the answers agree better than independent samples would: both models share their noise"
        )
    doubts += _doubts(candidate.positions, limit, num_answers)
    if errors:
        doubts.append(f"{len(errors)} answers are missing, the first due to: {errors[0]}")
    bounds = ", ".join(f"{test.upper_bound(CONFIDENCE):.3f}" for test in candidate.positions)
    verdict: Verdict = "fail" if faults else "inconclusive" if doubts else "pass"
    reasons = faults or doubts or ["no test finds a difference from the target alone"]
    summary = (
        f"{'; '.join(reasons)}. Total variation of the next token is below {bounds} (tokens 1 to "
        f"{len(candidate.positions)}, {CONFIDENCE:.0%} confidence each; limit {limit:g}). "
        f"{draws.seeds_seen()}"
    )
    document = draws.as_document() | {
        "answers_per_prompt_and_model": num_answers,
        "answers_missing": len(errors),
        "alpha": ALPHA,
        "confidence": CONFIDENCE,
        "against_target": _comparison_document(candidate),
        "target_against_itself": _comparison_document(itself),
    }
    return Section(title, verdict, summary, _table(candidate, itself), document=document)


def _doubts(positions: Sequence[PositionTest], limit: float, num_answers: int) -> list[str]:
    untested = [str(test.position) for test in positions if not test.dof]
    if untested:
        return [f"token {', '.join(untested)}: no prefix has enough answers that differ"]
    if all(test.upper_bound(CONFIDENCE) <= limit for test in positions):
        return []
    growth = max(test.growth_needed(limit, CONFIDENCE, _PROBABILITY_OF_SUCCESS) for test in positions)
    needed = max(math.ceil(growth * num_answers), num_answers + 1)
    return [
        f"{num_answers} answers per prompt and model do not show a total variation below {limit:g}; "
        f"about {needed} would ({_PROBABILITY_OF_SUCCESS:.0%} of the time if the distributions are equal)"
    ]


def _table(candidate: SampleComparison, itself: SampleComparison) -> Table | None:
    rows: list[dict[str, object]] = [
        {
            "compared": f"token {test.position}",
            "prefixes": test.num_prefixes,
            "share tested": test.share_tested,
            "merged as rare": test.merged_probability,
            "chi-square": test.statistic,
            "dof": test.dof,
            "p": test.p_value,
            "p of A/A": control.p_value,
            "TV below": test.upper_bound(CONFIDENCE),
            "A/A below": control.upper_bound(CONFIDENCE),
        }
        for test, control in zip(candidate.positions, itself.positions, strict=True)
    ]
    together = {"p": candidate.discrepancy_p_value, "p of A/A": itself.discrepancy_p_value}
    rows.append({**dict.fromkeys(rows[0], ""), "compared": "all tokens together", **together})
    return Table.of(rows)


def _comparison_document(comparison: SampleComparison) -> dict[str, object]:
    return {
        "p_value_of_all_tokens_together": comparison.discrepancy_p_value,
        "positions": [
            asdict(test)
            | {"p_value": test.p_value, "total_variation_upper_bound": test.upper_bound(CONFIDENCE)}
            for test in comparison.positions
        ],
    }
