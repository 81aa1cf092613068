"""What is asked: prompts and the sampling that goes with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.bench.generated_prompts import adversarial_requests, repetitive_texts
from pipelines.client import CompletionRequest
from pipelines.errors import InvalidRequestError
from pipelines.prompts import HELD_OUT, read_prompts
from pipelines.text.vocabulary import Vocabulary

_MIXED = HELD_OUT.with_name("mixed.jsonl")
_SEED = 2026  # of generated prompts

CODE, MIXED, ADVERSARIAL, REPETITIVE = SET_NAMES = ("code", "mixed", "adversarial", "repetitive")


@dataclass(frozen=True, eq=False)
class PromptSet:
    """Requests of one kind.

    Attributes:
        name: One of ``SET_NAMES``.
        requests: Without arm and ``max_tokens``; each has a seed, so that its answer is the same every
            time.
    """

    name: str
    requests: tuple[CompletionRequest, ...]


def read_prompt_sets(
    names: Sequence[str], count: int, temperature: float, code_file: Path
) -> dict[str, PromptSet]:
    """Read or make prompt sets, by their names; ``adversarial`` is left to ``adversarial_set``.

    Args:
        names: Of ``SET_NAMES``.
        count: Requests in each.
        temperature: Of all of them.
        code_file: Prompts of ``code``.

    Raises:
        InvalidRequestError: A file holds too few prompts.
    """
    found = {}
    for name in names:
        if name == ADVERSARIAL:
            continue
        if name == REPETITIVE:
            texts = repetitive_texts(count, _SEED)
        else:
            prompts = read_prompts(code_file if name == CODE else _MIXED, count)
            texts = tuple(prompt.text for prompt in prompts)
        requests = (
            CompletionRequest(text, temperature=temperature, seed=seed) for seed, text in enumerate(texts)
        )
        found[name] = PromptSet(name, tuple(requests))
    return found


def adversarial_set(count: int, vocabulary: Vocabulary | None) -> PromptSet:
    """Make the set of requests that no draft can follow; it is greedy, see ``adversarial_requests``.

    Args:
        count: Requests wanted.
        vocabulary: The target's; None if its tokenizer is not on this machine.

    Raises:
        InvalidRequestError: There is no vocabulary, or it has no single bytes.
    """
    if vocabulary is None:
        raise InvalidRequestError(
            "the adversarial prompt set cannot be made",
            values="no tokenizer.json of the target on this machine",
            limit="its answers are confined to tokens that are looked up there",
            remedy="run the bench on the server's machine, or leave it out: --sets code,mixed,repetitive",
        )
    return PromptSet(ADVERSARIAL, adversarial_requests(count, _SEED, vocabulary.bytes_of))
