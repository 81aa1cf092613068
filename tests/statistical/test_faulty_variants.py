"""Tests that the statistical tests reject faulty samplers: pytest tests/statistical.

``tests/exact`` rejects every variant that changes a distribution. Here are those that need real noise or a
real cache, and one that shows that samples, too, reject a wrong rule.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pipelines.executor.sequence import Sequence
from pipelines.speculation.sampling import draws
from pipelines.speculation.sampling.noise import NoiseStream, words_at
from tests.exact.faulty_variants import VARIANTS, Variant
from tests.statistical.counting import count
from tests.statistical.judge import Judgement, judge_law
from tests.statistical.outcomes import Counts, joint_law
from tests.statistical.pairs import LONG, REVERSED
from tests.statistical.table_engine import count_served
from tests.statistical.tables import Pair
from tests.statistical.test_sampler_distribution import SMALL
from tests.statistical.test_served_distribution import NUM_ANSWERS

COUPLED, RATIO = False, True


def _cut_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def words(seed: int, stream: NoiseStream, position: int, count: int) -> np.ndarray:
        return words_at(seed % 256, stream, position, count)

    monkeypatch.setattr(draws, "words_at", words)


def _accept_what_is_likely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept by typical acceptance (Medusa, arXiv:2401.10774): lossy by design."""
    real = Sequence._choose

    def choose(self: Sequence, logits: np.ndarray, num_accepted: int, draft_id: int | None) -> int:
        if (
            draft_id is not None
            and draws.distribution(self.sampler.distribution_scores(logits))[draft_id] > 0.05
        ):
            return draft_id
        return real(self, logits, num_accepted, draft_id)

    monkeypatch.setattr(Sequence, "_choose", choose)


# Too few different seeds change no distribution that an enumeration of ideal noise could see.
@pytest.mark.parametrize(
    ("name", "variant", "use_draft_logits", "num_answers"),
    [
        ("no residual", VARIANTS["no residual"], RATIO, SMALL),
        ("likely drafts are accepted", _accept_what_is_likely, COUPLED, SMALL),
        pytest.param("seed cut to 8 bits", _cut_the_seed, COUPLED, 6_000, marks=pytest.mark.long),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_faulty_variant_is_rejected(
    name: str,
    variant: Variant,
    use_draft_logits: bool,
    num_answers: int,
    monkeypatch: pytest.MonkeyPatch,
    reject: Callable[[str, list[Judgement]], None],
) -> None:
    variant(monkeypatch)
    reject(name, _judgements(REVERSED, count(REVERSED, use_draft_logits, range(num_answers))))


@pytest.mark.long
@pytest.mark.parametrize("use_draft_logits", [COUPLED, RATIO], ids=["coupled", "ratio"])
def test_a_draft_cache_one_token_behind_is_rejected(
    use_draft_logits: bool, monkeypatch: pytest.MonkeyPatch, reject: Callable[[str, list[Judgement]], None]
) -> None:
    name = "a draft cache one token behind after full acceptance"
    VARIANTS[name](monkeypatch)
    reject(name, _judgements(LONG, count_served(LONG, use_draft_logits, range(NUM_ANSWERS))))


def _judgements(pair: Pair, counts: Counts) -> list[Judgement]:
    judgements = [judge_law("joint law", counts.cells, joint_law(pair))]
    if not pair.request.end_ids:
        judgements.append(Judgement("acceptance", counts.acceptance.outcome()))
    return judgements
