"""Checks that every possible answer to a request must pass; each raises AssertionError.

A check is given every path of one case under one rule (``Explored``). ``tests/breakages`` plants faults known
from other decoders that they reject.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from pipelines.speculation.request import GenerationRequest, Output
from tests.exact.branching import Branching, Outcome
from tests.exact.cases import Case
from tests.exact.exploration import Call, Exploration, Way
from tests.exact.races import agreement, total_variation
from tests.exact.reference import Answer, Law, law_of_proposals, law_of_target_alone, next_token_law


@dataclass(frozen=True)
class Explored:
    """Everything that can happen in one case under one rule."""

    case: Case
    rule: str
    request: GenerationRequest
    ways: list[Way]
    alone: list[Outcome[Output]]

    @property
    def uses_ratio(self) -> bool:
        return self.rule == "ratio"

    @property
    def spelling(self) -> tuple[bytes, ...]:
        return self.case.vocabulary.bytes_of

    @cached_property
    def law(self) -> Law:
        """Return the distribution of the loop's answers."""
        law: defaultdict[Answer, Fraction] = defaultdict(Fraction)
        for way in self.ways:
            law[way.answer] += way.probability
        return dict(law)

    @cached_property
    def proposals(self) -> dict[tuple[int, ...], list[tuple[Call, Call, Fraction]]]:
        """Return, per output so far, each proposal, its verification, and the probability of both."""
        found: defaultdict[tuple[int, ...], list[tuple[Call, Call, Fraction]]] = defaultdict(list)
        for way in self.ways:
            for call, following in zip(way.calls, way.calls[1:], strict=False):
                if call.role == "draft":
                    found[call.known].append((call, following, way.probability))
        return dict(found)

    def next_law(self, role: str, known: tuple[int, ...]) -> list[Fraction]:
        """Return the reference's distribution of the next token of draft or target."""
        table = self.case.draft_table if role == "draft" else self.case.target_table
        prompt = self.request.input_ids.tolist()
        return next_token_law(table((*prompt, *known)), prompt, known, self.request, self.spelling)


def explore(
    branching: Branching, case: Case, rule: str, *, shares_noise: bool = True, anew: bool = False
) -> Explored:
    """Enumerate every path of one case.

    Args:
        shares_noise: See ``Exploration``.
        anew: Whether every path starts from the beginning on executors of its own.
    """
    tables = case.draft_table, case.target_table, case.vocabulary
    exploration = Exploration(branching, *tables, shares_noise=shares_noise)
    request = case.whole_request()
    go = exploration.ways_anew if anew else exploration.ways
    ways = list(go(request, case.num_draft_tokens, use_draft_logits=rule == "ratio"))
    return Explored(case, rule, request, ways, exploration.alone(request))


def _assert_equal(found: Mapping[Hashable, Fraction], wanted: Mapping[Hashable, Fraction], what: str) -> None:
    differing = {key for key in {*found, *wanted} if found.get(key, 0) != wanted.get(key, 0)}
    distance = sum(abs(found.get(key, Fraction(0)) - wanted.get(key, Fraction(0))) for key in differing) / 2
    shown = [
        f"{key}: {float(found.get(key, 0)):.6f}, not {float(wanted.get(key, 0)):.6f}"
        for key in sorted(differing, key=repr)[:5]
    ]
    assert not differing, f"{what}: total variation {float(distance):.6f}; {'; '.join(shown)}"


def law_is_that_of_the_target_alone(explored: Explored) -> None:
    """Check that tokens and finish reason are distributed as those of the target without a draft."""
    alone: defaultdict[Answer, Fraction] = defaultdict(Fraction)
    for outcome in explored.alone:
        alone[tuple(outcome.result.token_ids.tolist()), outcome.result.finish_reason] += outcome.probability
    _assert_equal(explored.law, alone, "law of the answers against the target alone")


def law_is_that_of_the_reference(explored: Explored) -> None:
    """Check that they are distributed as the documented parameters define."""
    wanted = law_of_target_alone(explored.case.target_table, explored.request, explored.spelling)
    _assert_equal(explored.law, wanted, "law of the answers against the reference")


def target_decides(explored: Explored) -> None:
    """Check that the target draws each position once, as if it were alone, and that its draws are the answer.

    The answer is then a function of the target's choices, whatever the draft proposed and however its choices
    depend on the target's. This holds for the coupled rule only: the ratio rule gives another sample.
    """
    assert not explored.uses_ratio
    wanted = {
        outcome.draws: (tuple(outcome.result.token_ids.tolist()), outcome.result.finish_reason)
        for outcome in explored.alone
    }
    assert len(wanted) == len(explored.alone)
    for way in explored.ways:
        drawn = tuple(draw for call in way.calls if call.role == "target" for draw in call.draws)
        assert drawn in wanted, f"the target draws {drawn}, which it never does alone"
        assert way.answer == wanted[drawn], f"{way.answer} although the target drew {drawn}"


def proposals_follow_the_draft(explored: Explored) -> None:
    """Check that each proposal is the draft's own sample after exactly the output that preceded it."""
    for known, proposals in explored.proposals.items():
        total = sum(probability for _, _, probability in proposals)
        law: defaultdict[tuple[int, ...], Fraction] = defaultdict(Fraction)
        for call, _, probability in proposals:
            law[call.token_ids] += probability / total
        wanted = law_of_proposals(
            explored.case.draft_table,
            explored.request,
            known,
            proposals[0][0].num_wanted,
            explored.spelling,
            proposes_end=explored.uses_ratio,
        )
        _assert_equal(law, wanted, f"law of the proposals after {known}")


def acceptance_is_that_of_theory(explored: Explored) -> None:
    """Check that a proposal's first token is accepted with the rule's theoretical probability.

    Ratio rule: 1 - TV(p, q). Coupled rule: sum_i 1 / sum_k max(p_k / p_i, q_k / q_i), over all tokens but the
    end token, which is never proposed.
    """
    if len(explored.request.end_ids) > 1:
        return  # the answer does not show whether the proposed end token ended it or another one did
    for known, proposals in explored.proposals.items():
        total = sum(probability for _, _, probability in proposals)
        accepted = sum(
            probability
            for call, verified, probability in proposals
            if _first_is_kept(explored, call, verified)
        )
        p, q = explored.next_law("target", known), explored.next_law("draft", known)
        if explored.uses_ratio:
            wanted = 1 - total_variation(p, q)
        else:
            by_token = agreement(p, q)
            wanted = sum(by_token) - sum(by_token[end_id] for end_id in explored.request.end_ids)
        assert accepted / total == wanted, (
            f"after {known} the first draft token is accepted with probability "
            f"{float(accepted / total):.6f}, not {float(wanted):.6f}"
        )


def _first_is_kept(explored: Explored, proposal: Call, verified: Call) -> bool:
    if not proposal.token_ids:
        return False
    first = proposal.token_ids[0]
    return verified.token_ids[:1] == (() if first in explored.request.end_ids else (first,))


def rounds_count_what_happened(explored: Explored) -> None:
    """Check that the rounds report the calls' draft tokens, accepted tokens and finish reasons."""
    for way in explored.ways:
        calls = iter(way.calls)
        num_emitted = 0
        for number, part in enumerate(way.rounds):
            call = next(calls)
            proposal: tuple[int, ...] = ()
            if call.role == "draft":
                proposal, call = call.token_ids, next(calls)
            emitted = tuple(part.token_ids.tolist())
            assert call.role == "target" and call.known == way.answer[0][:num_emitted]
            assert emitted == call.token_ids and len(emitted) <= len(proposal) + 1
            assert part.num_draft_tokens == len(proposal) <= explored.case.num_draft_tokens
            num_accepted = part.num_accepted_tokens
            assert emitted[:num_accepted] == proposal[:num_accepted]
            behind, proposed_behind = emitted[num_accepted:], proposal[num_accepted:]
            assert not behind or behind[:1] != proposed_behind[:1]
            assert bool(part.finish_reason) == (number == len(way.rounds) - 1)
            num_emitted += len(emitted)
        assert next(calls, None) is None and num_emitted <= explored.request.max_tokens


CHECKS: tuple[Callable[[Explored], None], ...] = (
    law_is_that_of_the_target_alone,
    law_is_that_of_the_reference,
    proposals_follow_the_draft,
    acceptance_is_that_of_theory,
    rounds_count_what_happened,
)
"""The checks that hold under both rules."""
