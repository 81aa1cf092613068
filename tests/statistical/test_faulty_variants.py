"""Tests that the statistical tests reject every faulty sampler: pytest tests/statistical."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from pipelines.executor.request import AnswerRequest
from pipelines.speculation.sampling import draws
from pipelines.speculation.sampling.noise import NoiseStream, words_at
from tests.exact.faulty_variants import VARIANTS, Variant
from tests.statistical.counting import count
from tests.statistical.judge import Judgement, judge_law
from tests.statistical.outcomes import Counts, joint_law
from tests.statistical.pairs import LONG, PAIRS
from tests.statistical.table_engine import count_served
from tests.statistical.tables import Pair
from tests.statistical.test_sampler_distribution import SMALL
from tests.statistical.test_served_distribution import NUM_ANSWERS

_PAIRS = {pair.name: pair for pair in PAIRS}
_BANS = "bad words, min_tokens, end_id, bias"

COUPLED, RATIO = False, True
FEW = 500


@dataclass(frozen=True)
class Rejection:
    """The test that rejects a variant."""

    pair: str
    use_draft_logits: bool
    num_answers: int = SMALL


REJECTED_BY: dict[str, Rejection] = {
    "shared noise with the ratio rule": Rejection("temperature", RATIO, 6_000),
    "u fixed at 0": Rejection("temperature", RATIO, FEW),
    "inverted ratio": Rejection("temperature", RATIO, FEW),
    "no residual": Rejection("top_k, top_p, min_p", RATIO, 1_000),
    "q from raw logits": Rejection("penalties", RATIO),
    "argmax that ignores temperature": Rejection("temperature", COUPLED, FEW),
    "off by one position": Rejection("temperature", RATIO, FEW),
    "bonus token from the draft": Rejection("temperature", COUPLED, 1_000),
    "reseeding per token": Rejection("temperature", COUPLED),
    "penalties applied to one side only": Rejection("penalties", RATIO, 1_000),
    "a draft that takes the argmax whatever the temperature": Rejection("temperature", RATIO, FEW),
    "temperature forgotten": Rejection("temperature", COUPLED),
    "recovered token drawn with the draft's noise": Rejection("temperature", RATIO, 6_000),
    "target's noise off by one position": Rejection("temperature", COUPLED),
    "end token never proposed to the ratio rule": Rejection(_BANS, RATIO),
    "penalties that do not see the round's own tokens": Rejection("penalties", RATIO, 4_000),
    "min_tokens counted anew in every round": Rejection("all of them", RATIO, FEW),
    "coin made of the draft's noise": Rejection("top_k, top_p, min_p", RATIO),
    "one stream for all noise": Rejection("top_k, top_p, min_p", RATIO),
    "a new seed for every token": Rejection("temperature", COUPLED),
}

# Shows only behind a cache.
SERVED = "a draft cache one token behind after full acceptance"

# Miscounts only where an output ends among the drafts, and changes no token: the exact tests reject it.
CHANGES_NO_ANSWER = "every token but the last counted as accepted"


def _cut_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def words(seed: int, stream: NoiseStream, position: int, count: int) -> np.ndarray:
        return words_at(seed % 256, stream, position, count)

    monkeypatch.setattr(draws, "words_at", words)


def _accept_what_is_likely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept by typical acceptance (Medusa, arXiv:2401.10774): lossy by design."""
    real = AnswerRequest._choose

    def choose(self: AnswerRequest, logits: np.ndarray, num_accepted: int, draft_id: int | None) -> int:
        if (
            draft_id is not None
            and draws.distribution(self.sampler.distribution_scores(logits))[draft_id] > 0.05
        ):
            return draft_id
        return real(self, logits, num_accepted, draft_id)

    monkeypatch.setattr(AnswerRequest, "_choose", choose)


# Too few different seeds change no distribution that an enumeration of ideal noise could see.
MORE: dict[str, tuple[Variant, Rejection]] = {
    "seed cut to 8 bits": (_cut_the_seed, Rejection("temperature, reversed draft", COUPLED, 6_000)),
    "likely drafts are accepted": (_accept_what_is_likely, Rejection("temperature, reversed draft", COUPLED)),
}

CONTROLS = {name: (VARIANTS[name], rejection) for name, rejection in REJECTED_BY.items()} | MORE


# tests/exact rejects most others by enumeration; `make test-all` shows that samples reject them, too.
_IN_EVERY_RUN = {"no residual", "likely drafts are accepted"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name not in _IN_EVERY_RUN)) for name in CONTROLS]
)
def test_a_faulty_variant_is_rejected(
    name: str, monkeypatch: pytest.MonkeyPatch, reject: Callable[[str, list[Judgement]], None]
) -> None:
    monkeypatch.setattr(secrets, "randbits", random.Random(1).getrandbits)  # for "a new seed for every token"
    variant, rejection = CONTROLS[name]
    variant(monkeypatch)
    pair = _PAIRS[rejection.pair]
    reject(name, _judgements(pair, count(pair, rejection.use_draft_logits, range(rejection.num_answers))))


@pytest.mark.long
@pytest.mark.parametrize("use_draft_logits", [COUPLED, RATIO], ids=["coupled", "ratio"])
def test_a_draft_cache_one_token_behind_is_rejected(
    use_draft_logits: bool, monkeypatch: pytest.MonkeyPatch, reject: Callable[[str, list[Judgement]], None]
) -> None:
    VARIANTS[SERVED](monkeypatch)
    reject(SERVED, _judgements(LONG, count_served(LONG, use_draft_logits, range(NUM_ANSWERS))))


def test_every_faulty_variant_is_a_control() -> None:
    assert {*REJECTED_BY, SERVED, CHANGES_NO_ANSWER} == {*VARIANTS}


def _judgements(pair: Pair, counts: Counts) -> list[Judgement]:
    judgements = [judge_law("joint law", counts.cells, joint_law(pair))]
    if not pair.request.end_ids:
        judgements.append(Judgement("acceptance", counts.acceptance.outcome()))
    return judgements
