"""A second implementation of the target's distribution: plain loops over Python floats.

It is written from the documentation of ``SamplingParams`` and ``GenerationRequest``, not from the code that
applies them, and is as literal as possible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from pipelines.speculation.request import GenerationRequest
from pipelines.speculation.sampling.params import SamplingParams
from tests.exact.branching import exact_law
from tests.exact.engines import Table

Answer = tuple[tuple[int, ...], str]
"""Output tokens and finish reason."""

Law = dict[Answer, Fraction]


def text_of(token_ids: Sequence[int], spelling: Sequence[bytes]) -> bytes:
    """Return the bytes of tokens."""
    return b"".join(spelling[token_id] for token_id in token_ids)


def adjusted_logits(
    logits: Sequence[float],
    prompt: Sequence[int],
    output: Sequence[int],
    request: GenerationRequest,
    spelling: Sequence[bytes],
) -> list[float]:
    """Return the logits after bans, bias and penalties, which also affect greedy choices."""
    sampling = request.sampling
    adjusted = []
    for token_id, logit in enumerate(logits):
        score = float(logit)
        for biased_id, bias in sampling.logit_bias:
            if biased_id == token_id:
                score = score + bias
        if token_id in prompt or token_id in output:
            penalty = sampling.repetition_penalty
            score = score / penalty if score > 0 else score * penalty
        score = score - sampling.frequency_penalty * list(output).count(token_id)
        if token_id in output:
            score = score - sampling.presence_penalty
        text = text_of([*output, token_id], spelling)
        if spelling[token_id] and any(word in text for word in request.bad_words):
            score = -math.inf
        if token_id in request.end_ids and len(output) < sampling.min_tokens:
            score = -math.inf
        adjusted.append(score)
    return adjusted


def softmax(scores: Sequence[float]) -> list[float]:
    """Return probabilities."""
    best = max(scores)
    weights = [math.exp(score - best) for score in scores]
    return [weight / math.fsum(weights) for weight in weights]


def sampled_scores(adjusted: Sequence[float], sampling: SamplingParams) -> list[float]:
    """Return log probabilities at a temperature above 0, up to a constant; -inf for excluded tokens."""
    scores = [score / sampling.temperature for score in adjusted]

    def rank(token_id: int) -> tuple[float, int]:
        return (-scores[token_id], token_id)

    def keep(kept: Sequence[int]) -> None:
        for token_id in range(len(scores)):
            if token_id not in kept:
                scores[token_id] = -math.inf

    law = softmax(scores)
    keep([token_id for token_id in range(len(scores)) if law[token_id] >= sampling.min_p * max(law)])

    best_first = sorted(range(len(scores)), key=rank)
    if sampling.top_k:
        keep(best_first[: sampling.top_k])

    if sampling.top_p < 1:
        law = softmax(scores)
        nucleus: list[int] = []
        for token_id in best_first:
            if math.fsum(law[kept] for kept in nucleus) >= sampling.top_p:
                break
            nucleus.append(token_id)
        keep(nucleus)
    return scores


def next_token_law(
    logits: Sequence[float],
    prompt: Sequence[int],
    output: Sequence[int],
    request: GenerationRequest,
    spelling: Sequence[bytes],
) -> list[Fraction]:
    """Return the probability of each token after ``prompt`` and ``output``."""
    adjusted = adjusted_logits(logits, prompt, output, request, spelling)
    if request.sampling.temperature == 0:
        best = adjusted.index(max(adjusted))
        return [Fraction(token_id == best) for token_id in range(len(adjusted))]
    return list(exact_law(sampled_scores(adjusted, request.sampling)))


def finish_reason(
    output: Sequence[int], request: GenerationRequest, spelling: Sequence[bytes], max_tokens: int
) -> str:
    """Return why an output ends with its last token, which is no end token; "" if it does not end."""
    watched = text_of(output[request.sampling.min_tokens :], spelling)
    if any(word in watched for word in request.stop_words):
        return "stop"
    return "length" if len(output) == max_tokens else ""


def law_of_target_alone(
    table: Table, request: GenerationRequest, spelling: Sequence[bytes], begun: tuple[int, ...] = ()
) -> Law:
    """Return the distribution of whole answers that begin with ``begun``; all ``input_ids`` are prompt."""
    prompt = request.input_ids.tolist()
    law: Law = {}

    def follow(output: tuple[int, ...], probability: Fraction) -> None:
        logits = table((*prompt, *output))
        for token_id, p in enumerate(next_token_law(logits, prompt, output, request, spelling)):
            if not p:
                continue
            longer = (*output, token_id)
            if token_id in request.end_ids:
                add((output, "stop"), probability * p)
            elif reason := finish_reason(longer, request, spelling, request.max_tokens):
                add((longer, reason), probability * p)
            else:
                follow(longer, probability * p)

    def add(answer: Answer, probability: Fraction) -> None:
        law[answer] = law.get(answer, Fraction(0)) + probability

    follow(begun, Fraction(1))
    return law


def law_of_proposals(
    table: Table,
    request: GenerationRequest,
    output: tuple[int, ...],
    num_wanted: int,
    spelling: Sequence[bytes],
    *,
    proposes_end: bool,
) -> dict[tuple[int, ...], Fraction]:
    """Return the distribution of the draft's proposals of up to ``num_wanted`` tokens after ``output``."""
    prompt = request.input_ids.tolist()
    law: dict[tuple[int, ...], Fraction] = {}

    def follow(proposal: tuple[int, ...], probability: Fraction) -> None:
        known = (*output, *proposal)
        logits = table((*prompt, *known))
        for token_id, p in enumerate(next_token_law(logits, prompt, known, request, spelling)):
            if not p:
                continue
            longer = (*proposal, token_id)
            if token_id in request.end_ids:
                longer = longer if proposes_end else proposal
            elif not finish_reason((*output, *longer), request, spelling, len(output) + num_wanted):
                follow(longer, probability * p)
                continue
            law[longer] = law.get(longer, Fraction(0)) + probability * p

    follow((), Fraction(1))
    return law
