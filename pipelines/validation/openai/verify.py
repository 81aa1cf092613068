"""Judge the answers of an OpenAI-compatible server by a control's, which are in a baseline.

The candidate answers the control's questions one at a time and then under load, in streams. The audit of
first divergences judges it (``pipelines/validation/audit.py``), plain answers and those of other kinds apart.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pipelines.command_line.prompts import Prompt
from pipelines.errors import DraftproofError, InvalidRequestError, VerificationError
from pipelines.validation.asking import OnAnswer, ask_each
from pipelines.validation.audit import ALPHA_OF_REASON, Judged, judge
from pipelines.validation.differences import NO_ANSWER, Comparison, Difference
from pipelines.validation.noise_floor import chance_of_more
from pipelines.validation.openai.baseline import Baseline, answer_or_error
from pipelines.validation.openai.comparing import as_streamed, compare_answers
from pipelines.validation.openai.kinds import PLAIN, SAMPLED
from pipelines.validation.openai.server.abilities import Abilities
from pipelines.validation.openai.server.answers import Answer
from pipelines.validation.openai.server.server import OpenAIServer, Question
from pipelines.validation.stopping import StoppedError, pause, stop_error

Expect = Literal["audit", "exact"]
"""audit: results may depend on the batch; exact: answers must be equal."""
Outcome = Answer | DraftproofError

_COUNTS_WITHIN_S = 20.0
_SHORTEST_SILENCE_S, _SILENCE = 30.0, 5.0  # the candidate may be so many times slower than the control


@dataclass(frozen=True)
class Way:
    """The answers of both servers to some questions, asked in one way.

    Attributes:
        name: How they were asked.
        is_alone: Whether one at a time.
        questions: The questions.
        own: The control's answers.
        others: The candidate's.
        compared: The candidate beside the control.
        noise: The control beside itself.
        judged: What the audit made of them.
    """

    name: str
    is_alone: bool
    questions: Sequence[Question]
    own: Sequence[Outcome]
    others: Sequence[Outcome]
    compared: Comparison
    noise: Comparison
    judged: Judged


@dataclass(frozen=True)
class Compared:
    """Everything that was found.

    Attributes:
        ways: Plain answers and those of other kinds, alone and under load.
        faults: Further reasons to fail.
        doubts: Further reasons not to pass.
        notes: What was not compared because of the candidate.
        sampled: (number of sampled answers, how many of them are the greedy ones), of control and candidate.
    """

    ways: tuple[Way, ...]
    faults: tuple[str, ...]
    doubts: tuple[str, ...]
    notes: tuple[str, ...]
    sampled: tuple[tuple[int, int], tuple[int, int]]


class Candidate:
    """Asks a candidate the questions of a control, round by round.

    Args:
        server: The candidate.
        control: What the control can do.
        load: Number of concurrent requests.
        named_ids: Whether the log probabilities of the control name tokens by ids.
        timeout_s: Longest silence that a user named; None for several times the control's longest answer.
        on_answer: Called after each answer.
    """

    def __init__(
        self,
        server: OpenAIServer,
        control: Abilities,
        load: int,
        timeout_s: float | None,
        on_answer: OnAnswer,
        *,
        named_ids: bool,
    ) -> None:
        self.named_ids = named_ids
        self.server, self.streams = server, compares_streams(control, server.abilities)
        self.load_name = f"x{load}{', streamed' if self.streams else ''}"
        self.alone: list[Outcome] = []
        self.loaded: list[Outcome] = []
        self._load, self._timeout_s, self._on_answer = load, timeout_s, on_answer
        self._num_drafted_before = server.draft_tokens()

    def ask(self, questions: Sequence[Question], slowest_s: float) -> None:
        """Ask some questions in both ways.

        Args:
            questions: The questions.
            slowest_s: Longest time that an answer of the control took, in seconds.
        """
        self.server.limit_silence(self._timeout_s or max(_SHORTEST_SILENCE_S, _SILENCE * slowest_s))

        def ask(question: Question, *, stream: bool = False) -> Answer:
            wants = question.log_probs == "both"
            return self.server.ask(question, stream=stream, log_probs=wants, named_ids=self.named_ids)

        def ask_loaded(question: Question) -> Answer:
            return ask(question, stream=self.streams)

        self.alone += ask_each("candidate one at a time", ask, questions, 1, self._on_answer)
        name = f"candidate {self.load_name}"
        self.loaded += ask_each(name, ask_loaded, questions, self._load, self._on_answer)

    def num_drafted(self) -> int | None:
        """Return the number of tokens drafted so far, which servers may publish after the answers."""
        before, gives_up_at_s = self._num_drafted_before, time.monotonic() + _COUNTS_WITHIN_S
        after = self.server.draft_tokens()
        while (
            before is not None and after == before and time.monotonic() < gives_up_at_s and not stop_error()
        ):
            pause(0.5)
            after = self.server.draft_tokens()
        return None if before is None or after is None else after - before


def compare(baseline: Baseline, candidate: Candidate, expect: Expect) -> Compared:
    """Compare the candidate's answers with the control's.

    Args:
        baseline: The control's answers.
        candidate: The candidate, which was asked the first of the same questions.
        expect: How to judge differences.
    """
    server, answers = candidate.server, baseline.answers
    with_ids = baseline.abilities.token_ids and server.abilities.token_ids
    questions = answers.questions[: len(candidate.loaded)]
    alone, loaded = (
        [answer_or_error(each) for each in recorded[: len(questions)]]
        for recorded in (answers.alone, answers.loaded)
    )
    streamed = list(map(as_streamed, alone, loaded))
    failures_are_faults = not any(
        isinstance(each, DraftproofError) and not isinstance(each, NO_ANSWER) for each in (*alone, *loaded)
    )
    refused = _refused(questions, candidate.alone)
    ways = []
    for is_plain, is_alone in itertools.product((True, False), (True, False)):
        own = alone if is_alone or not candidate.streams else streamed
        others = candidate.alone if is_alone else candidate.loaded
        asked = [
            number
            for number, question in enumerate(questions)
            if (question.kind == PLAIN) == is_plain
            and question.kind not in (SAMPLED, *refused)
            and not isinstance(others[number], StoppedError)
            and not isinstance(loaded[number], StoppedError)
        ]
        chosen = [questions[number] for number in asked]
        mine, theirs, repeated, again = (
            [given[number] for number in asked]
            for given in (own, others, streamed if with_ids else alone, loaded)
        )
        compared = compare_answers(
            chosen, mine, theirs, with_ids=with_ids, failures_are_faults=failures_are_faults
        )
        noise = _joined(
            compare_answers(chosen, repeated, again, with_ids=with_ids),
            [answers.scored[number] for number in asked],
        )
        name = "one at a time" if is_alone else candidate.load_name
        title = f"{PLAIN if is_plain else 'other kinds'}, {name}"
        kinds = [] if is_plain else [question.kind for question in chosen]
        judged = judge(title, compared, noise, exact=expect == "exact", kinds=kinds)
        if chosen or is_plain:
            ways.append(Way(name, is_alone, chosen, mine, theirs, compared, noise, judged))
    notes = [f"{kind}: the candidate refuses it: {why}" for kind, why in refused.items()]
    faults, doubts = [], [str(error)] if (error := stop_error()) else []
    if candidate.named_ids and not server.abilities.named_ids:
        notes.append("log probabilities: the control names tokens by ids, which the candidate does not tell")
    if (num_drafted := candidate.num_drafted()) == 0:
        faults.append("the candidate drafted nothing, so nothing was tested")
    elif num_drafted is None:
        notes.append("whether the candidate drafted anything: its metrics do not say")
    own_sampled, sampled = (
        _greedy_samples(questions, given)
        for given in ((*alone, *loaded), (*candidate.alone, *candidate.loaded))
    )
    if sampled[1] and chance_of_more(*reversed(sampled), *reversed(own_sampled)) <= ALPHA_OF_REASON:
        faults.append(
            f"{sampled[1]} of {sampled[0]} {SAMPLED} (temperature 1) are the greedy ones, and of the "
            f"control's {own_sampled[1]} of {own_sampled[0]}"
        )
    return Compared(tuple(ways), tuple(faults), tuple(doubts), tuple(notes), (own_sampled, sampled))


def _joined(loaded: Comparison, scored: Sequence[Difference | None]) -> Comparison:
    """Join both ways in which the control may differ from itself; the first of them counts."""
    pairs = zip(loaded.differences, scored, strict=True)
    return Comparison(tuple(first or second for first, second in pairs), loaded.missing)


def _greedy_samples(questions: Sequence[Question], answers: Sequence[Outcome]) -> tuple[int, int]:
    """Count sampled answers, asked in both ways, and how many of them are the greedy ones."""
    pairs = zip((*questions, *questions), answers, strict=True)
    texts = [
        (question.greedy, answer.text)
        for question, answer in pairs
        if question.kind == SAMPLED and isinstance(answer, Answer)
    ]
    return len(texts), sum(greedy == text for greedy, text in texts)


def _refused(questions: Sequence[Question], answers: Sequence[Outcome]) -> dict[str, str]:
    """Return the kinds of which the candidate refuses all questions: name -> why.

    Only a refusal counts. A candidate that takes the request and ignores what it asks is judged.
    """
    by_kind: dict[str, list[Outcome]] = {}
    for question, answer in zip(questions, answers, strict=True):
        by_kind.setdefault(question.kind, []).append(answer)
    return {
        kind: str(of_kind[0])
        for kind, of_kind in by_kind.items()
        if kind != PLAIN and all(isinstance(answer, InvalidRequestError) for answer in of_kind)
    }


def compares_streams(control: Abilities, judged: Abilities) -> bool:
    """Return whether the candidate is asked for streams: unless neither server ends its own."""
    control_leaves_open = control.streams and not control.ends_streams
    return judged.streams and (judged.ends_streams or not control_leaves_open)


def check_paths(prompts: Sequence[Prompt], control: Abilities, candidate: Abilities, url: str) -> None:
    """Refuse prompts that the servers would be asked in different ways, or cannot be asked.

    Raises:
        VerificationError: The candidate cannot be asked the same questions.
    """
    has_chats = any(prompt.messages for prompt in prompts)
    both = control, candidate
    if (has_chats and not all(each.chat for each in both)) or control.completions != candidate.completions:
        able = (
            f"{name}: texts {abilities.completions}, chats {abilities.chat}"
            for name, abilities in zip(("control", url), both, strict=True)
        )
        raise VerificationError(
            f"the two servers cannot be asked the same: {', '.join(able)}",
            "give both the same chat template, or other prompts",
        )
