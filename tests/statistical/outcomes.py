"""Cells of the tests: the tokens that followed the certain first one, and the number of accepted drafts."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.special import chdtrc

from pipelines.speculation.loop import Round
from pipelines.validation.distribution.chi_square import CellTest
from tests.statistical.reference import acceptance_by_ratio, acceptance_when_coupled, processed_law
from tests.statistical.tables import Pair


def joint_law(pair: Pair) -> np.ndarray:
    """Return the probabilities of the K + 1 tokens after the certain ones, [(vocab_size + 1) ** (K + 1)].

    The digit vocab_size stands for "ended". Everything is float64 and computed from the target's table alone.
    """
    _, target = pair.tables()
    law = np.zeros((pair.vocab_size + 1) ** pair.num_counted)

    def follow(output: tuple[int, ...], probability: float) -> None:
        if len(output) == len(pair.certain) + pair.num_counted or {*pair.request.end_ids} & {*output}:
            law[cell_of(pair, output)] += probability
            return
        for token_id, p in enumerate(processed_law(target.row(output), pair.request, output)):
            if p:
                follow((*output, token_id), probability * p)

    follow(pair.certain, 1.0)
    return law


def cell_of(pair: Pair, output: tuple[int, ...]) -> int:
    """Return the index of an output in ``joint_law``, with or without an end token at its end."""
    counted = output[len(pair.certain) :][: pair.num_counted]
    digits = [token_id for token_id in counted if token_id not in pair.request.end_ids]
    cell = 0
    for digit in digits + [pair.vocab_size] * (pair.num_counted - len(digits)):
        cell = cell * (pair.vocab_size + 1) + digit
    return cell


MIN_VARIANCE = 100.0  # with fewer, a sum of coins is not normal as far out as the tests look


@dataclass
class Acceptance:
    """Counts drafted and accepted tokens and compares them with what the two distributions predict.

    There is one stratum per position in a round. Rounds after a full acceptance have strata of their own,
    because there a draft model's cache may be one token behind. Requests with an end token are excluded: the
    answer does not show whether one was drafted.

    Attributes:
        strata: For each (index in the round, whether after a full acceptance): drafted tokens, accepted ones,
            their expected number and its variance.
    """

    strata: dict[tuple[int, bool], np.ndarray] = field(default_factory=dict)

    def add(self, stratum: tuple[int, bool], totals: np.ndarray) -> None:
        """Count the drafts of one stratum."""
        self.strata[stratum] = self.strata.get(stratum, np.zeros(4)) + totals

    @property
    def rejection_rate(self) -> float:
        """The share of all drafted tokens that was rejected."""
        num_seen, num_accepted, *_ = sum(self.strata.values())
        return 1 - num_accepted / num_seen

    def outcome(self) -> CellTest:
        """Test whether every stratum accepted as many drafts as predicted.

        Each stratum adds the square of a normal deviate, with a noncentrality of at least n (2 d)^2 if the
        acceptance of its n drafts is off by d on average. ``num_samples`` is the smallest n.
        """
        tested = [totals for totals in self.strata.values() if totals[3] > MIN_VARIANCE]
        statistic = sum((accepted - expected) ** 2 / variance for _, accepted, expected, variance in tested)
        num_samples = min(num_seen for num_seen, *_ in tested)
        return CellTest(statistic, len(tested), float(chdtrc(len(tested), statistic)), num_samples, 0.0)


@dataclass
class Counts:
    """The counts of a number of seeds."""

    cells: np.ndarray
    acceptance: Acceptance


class Counter:
    """Counts the answers of one pair under one rule."""

    def __init__(self, pair: Pair, use_draft_logits: bool) -> None:
        self._pair = pair
        self._rule = acceptance_by_ratio if use_draft_logits else acceptance_when_coupled
        self._draft, self._target = pair.tables()
        self._probabilities: dict[tuple[int, ...], float] = {}
        self.counts = Counts(np.zeros((pair.vocab_size + 1) ** pair.num_counted, np.int64), Acceptance())

    def take(self, rounds: list[Round]) -> None:
        """Count one answer."""
        output: tuple[int, ...] = ()
        is_after_full = False
        for part in rounds:
            new = tuple(part.token_ids.tolist())
            for index in range(min(part.num_draft_tokens, part.num_accepted_tokens + 1)):
                probability = self._acceptance_after((*output, *new[:index]))
                is_accepted = index < part.num_accepted_tokens
                totals = np.array([1, is_accepted, probability, probability * (1 - probability)])
                self.counts.acceptance.add((index, is_after_full), totals)
            output += new
            is_after_full = 0 < part.num_draft_tokens == part.num_accepted_tokens
        self.counts.cells[cell_of(self._pair, output)] += 1

    def _acceptance_after(self, output: tuple[int, ...]) -> float:
        if output not in self._probabilities:
            laws = [
                processed_law(table.row(output), self._pair.request, output)
                for table in (self._target, self._draft)
            ]
            self._probabilities[output] = self._rule(*laws)
        return self._probabilities[output]
