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


@dataclass(frozen=True)
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
    names: Sequence[str], count: int, temperature: float, code_file: Path, vocabulary: Vocabulary | None
) -> tuple[PromptSet, ...]:
    """Read or make prompt sets.

    Args:
        names: Of ``SET_NAMES``.
        count: Requests in each.
        temperature: Of all but ``adversarial``, which is greedy: see ``adversarial_requests``.
        code_file: Prompts of ``code``.
        vocabulary: The target's, for ``adversarial``; None if its tokenizer is not on this machine.

    Raises:
        InvalidRequestError: A file holds too few prompts, or the vocabulary is needed and absent.
    """
    return tuple(
        PromptSet(name, _requests(name, count, temperature, code_file, vocabulary)) for name in names
    )


def _requests(
    name: str, count: int, temperature: float, code_file: Path, vocabulary: Vocabulary | None
) -> tuple[CompletionRequest, ...]:
    if name == ADVERSARIAL:
        if vocabulary is None:
            raise InvalidRequestError(
                "the adversarial prompt set cannot be made",
                values="no tokenizer.json of the target on this machine",
                limit="its answers are confined to tokens that are looked up there",
                remedy="run the bench on the server's machine, or leave it out: --sets code,mixed,repetitive",
            )
        return adversarial_requests(count, _SEED, vocabulary.bytes_of)
    if name == REPETITIVE:
        texts = repetitive_texts(count, _SEED)
    else:
        prompts = read_prompts(code_file if name == CODE else _MIXED, count)
        texts = tuple(prompt.text for prompt in prompts)
    return tuple(
        CompletionRequest(text, temperature=temperature, seed=seed) for seed, text in enumerate(texts)
    )
