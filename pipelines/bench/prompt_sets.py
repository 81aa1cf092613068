"""The prompt sets of a benchmark: those of the pair, unpredictable ones and repetitive ones.

The generated sets were chosen by probing the demonstration pair, whose draft was trained to imitate its
target. On random letters, base64 or other scripts the draft still agrees in four of five tokens, because
greedy text soon becomes loops of code; and a high temperature increases agreement, because both share the
noise.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipelines.client import CompletionRequest
from pipelines.command_line.prompts import Prompt, Prompts
from pipelines.errors import InvalidRequestError
from pipelines.text.vocabulary import Vocabulary

_FIRST_CHARACTER, _LAST_CHARACTER = 0x3B1, 0x9FA0  # Greek to CJK: none of them in the pair's corpus
_NUM_CHARACTERS = 24
_ONLY_THESE = 100.0  # the largest logit_bias, so that no other token is chosen
_NO_LOOPS = 1.0  # frequency_penalty
_WORDS = ("amber", "bolt", "cinder", "delta", "ember", "fjord", "grove", "harbor", "iris", "jade", "kelp")


def adversarial_requests(count: int, seed: int, bytes_of: Sequence[bytes]) -> tuple[CompletionRequest, ...]:
    """Generate requests whose answers a draft can hardly predict.

    They combine random characters of scripts that the pair was not trained on, answers restricted to the 64
    continuation bytes of UTF-8, which it never generates alone, and a frequency penalty against loops. In a
    simulation with the demonstration pair the draft agrees in 0.22 of tokens, and 0.13, 0.07 and 0.05 of
    drafts of 2, 4 and 6 tokens are accepted. The requests are greedy, because shared noise would increase
    agreement.

    Args:
        count: Number of requests.
        seed: The same seed gives the same requests.
        bytes_of: Entry i contains the bytes of token i.

    Raises:
        InvalidRequestError: The vocabulary has no tokens for single bytes.
    """
    drawn = random.Random(seed)
    continuation = [i for i, text in enumerate(bytes_of) if len(text) == 1 and 0x80 <= text[0] < 0xC0]
    if not continuation:
        raise InvalidRequestError(
            "the adversarial prompt set cannot be generated: its answers are continuation bytes of UTF-8, "
            f"and none of {len(bytes_of)} tokens is one",
            "name other sets with --sets",
        )
    bias = tuple((token_id, _ONLY_THESE) for token_id in continuation)
    return tuple(
        CompletionRequest(
            "".join(chr(drawn.randint(_FIRST_CHARACTER, _LAST_CHARACTER)) for _ in range(_NUM_CHARACTERS)),
            frequency_penalty=_NO_LOOPS,
            logit_bias=bias,
        )
        for _ in range(count)
    )


def repetitive_texts(count: int, seed: int) -> tuple[str, ...]:
    """Generate tables, records, rules, data and logs that the demonstration pair continues to repeat.

    On these, prompt lookup alone gives 3.7 to 6 tokens per target pass (1.8 on held-out code). Lists of calls
    or assignments, and texts repeated with one change, are not included: the pair is too small to copy them.

    Args:
        count: Number of texts, all different.
        seed: The same seed gives the same texts.
    """
    drawn = random.Random(seed)
    texts: dict[str, None] = {}  # a set that keeps its order
    while len(texts) < count:
        first, second = drawn.sample(_WORDS, 2)
        number = drawn.randint(2, 90)
        rule = f"# {'-' * 20}\n"
        kinds = (
            f"| {first} | {second} |\n" * 12,
            f"{first},{second},{number}\n" * 16,
            f"{rule}# {first} {number}\n{rule}# {second}\n{rule}",
            f"0x{number:02x}, " * 30,
            f"INFO {first}: {second} ok\n" * 12,
        )
        texts[kinds[len(texts) % len(kinds)]] = None
    return tuple(texts)


_SEED = 2026  # for generated prompts

ADVERSARIAL, REPETITIVE = GENERATED = ("adversarial", "repetitive")
"""Sets that the benchmark generates; a file of the same name is not read."""


@dataclass(frozen=True, eq=False)
class PromptSet:
    """Requests of one kind.

    Attributes:
        name: Name: that of a set of ``Prompts``, or one of ``GENERATED``.
        requests: Requests without arm and ``max_tokens``; each has a seed, so that its answer is always the
            same.
    """

    name: str
    requests: tuple[CompletionRequest, ...]


def names_of_sets(prompts: Prompts, given: Sequence[str] | None, *, is_quick: bool) -> tuple[str, ...]:
    """Return the names of the sets to measure.

    Args:
        prompts: Prompts of the pair.
        given: Requested names; None for all sets, or with ``is_quick`` for the largest and ``adversarial``.
        is_quick: Whether the short benchmark is run.

    Raises:
        InvalidRequestError: A requested set does not exist, or there is none but generated ones.
    """
    own = tuple(name for name in prompts.sets if name not in GENERATED)
    known = (*own, *GENERATED)
    names = tuple(given) if given else (*own[:1], ADVERSARIAL) if is_quick else known
    unknown = [name for name in names if name not in known]
    if unknown or not own:
        raise InvalidRequestError(
            f"there is no prompt set {', '.join(unknown) or 'that is not generated'}: {prompts.source} has "
            f"{', '.join(own) or 'none'}, and {', '.join(GENERATED)} are generated",
            "name some of these with --sets, or other prompts with --prompts",
        )
    return names


def draw_sets(prompts: Prompts, names: Sequence[str], least: int, most: int) -> Prompts:
    """Return the first prompts of each set that is not generated.

    Args:
        prompts: Prompts of the pair.
        names: Names from ``names_of_sets``.
        least: Number of prompts that each set must have.
        most: Number of prompts to take of each set.

    Raises:
        InvalidRequestError: Sets have fewer prompts than ``least``.
    """
    sets = {name: prompts.sets.get(name, ())[:most] for name in names if name not in GENERATED}
    if small := [f"{name}: {len(drawn)}" for name, drawn in sets.items() if len(drawn) < least]:
        raise InvalidRequestError(
            f"prompt sets have too few prompts, {least} are needed for these loads: "
            + "; ".join((f"{prompts.source}: {', '.join(small)}", *prompts.notes)),
            "lower --concurrency, add prompts (in *.txt one a line, or separated by lines ---), or name "
            "other sets with --sets",
        )
    kept = replace(prompts, sets=sets)
    if replaced := [name for name in prompts.sets if name in GENERATED]:
        return kept.with_note(f"the benchmark generates these sets itself: {', '.join(replaced)}")
    return kept


def make_prompt_sets(
    drawn: Prompts, names: Sequence[str], count: int, temperature: float
) -> dict[str, PromptSet]:
    """Make the requests of all sets except ``adversarial``, which ``adversarial_set`` generates.

    Args:
        drawn: Prompts from ``draw_sets``.
        names: Names from ``names_of_sets``.
        count: Number of requests in each set.
        temperature: Temperature of all requests.
    """
    sets = dict(drawn.sets)
    if REPETITIVE in names:
        sets[REPETITIVE] = tuple(Prompt(REPETITIVE, text) for text in repetitive_texts(count, _SEED))
    return {name: PromptSet(name, _requests(of_set, temperature)) for name, of_set in sets.items()}


def _requests(prompts: Sequence[Prompt], temperature: float) -> tuple[CompletionRequest, ...]:
    return tuple(
        CompletionRequest(prompt.text, temperature=temperature, seed=seed, **prompt.switches)
        for seed, prompt in enumerate(prompts)
    )


def adversarial_set(count: int, vocabulary: Vocabulary | None) -> PromptSet:
    """Generate the adversarial prompt set (``adversarial_requests``), which is greedy.

    Args:
        count: Number of requests.
        vocabulary: Vocabulary of the target; None if its tokenizer is not on this machine.

    Raises:
        InvalidRequestError: There is no vocabulary, or it has no tokens for single bytes.
    """
    if vocabulary is None:
        raise InvalidRequestError(
            "the adversarial prompt set cannot be generated without the target's tokenizer.json, which is "
            "not on this machine",
            "run the bench on the server's machine, or name other sets with --sets",
        )
    return PromptSet(ADVERSARIAL, adversarial_requests(count, _SEED, vocabulary.bytes_of))
