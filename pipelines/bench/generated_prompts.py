"""Prompts that are made, not found: those no draft can follow, and those that lookup can.

They were chosen by probing the demonstration pair, whose draft was trained to imitate its target: at
random letters, base64 or other scripts it still agrees in four of five tokens, for greedy text soon runs
into loops of code, and a high temperature makes draft and target agree more, since they share the noise.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from pipelines.client import CompletionRequest
from pipelines.errors import InvalidRequestError

_FIRST_CHARACTER, _LAST_CHARACTER = 0x3B1, 0x9FA0  # Greek to CJK: none of them in the pair's corpus
_NUM_CHARACTERS = 24
_ONLY_THESE = 100.0  # the greatest logit_bias: nothing else can be chosen
_NO_LOOPS = 1.0  # frequency_penalty
_WORDS = ("amber", "bolt", "cinder", "delta", "ember", "fjord", "grove", "harbor", "iris", "jade", "kelp")


def adversarial_requests(count: int, seed: int, bytes_of: Sequence[bytes]) -> tuple[CompletionRequest, ...]:
    """Requests of which a draft can guess next to nothing.

    Random characters of scripts that the pair never read, answers confined to the 64 continuation bytes
    of UTF-8, which it never wrote on their own, and a frequency penalty against loops. Nothing that the
    draft learned of the target helps it there: simulated on the demonstration pair, it agrees in 0.22 of
    tokens, and 0.13, 0.07 and 0.05 of drafts of 2, 4 and 6 tokens are accepted.
    Greedy, since noise that both share would make them agree.

    Args:
        count: Requests wanted.
        seed: The same seed gives the same requests.
        bytes_of: Entry i holds the bytes of token i.

    Raises:
        InvalidRequestError: The vocabulary has no tokens for single bytes.
    """
    drawn = random.Random(seed)
    continuation = [i for i, text in enumerate(bytes_of) if len(text) == 1 and 0x80 <= text[0] < 0xC0]
    if not continuation:
        raise InvalidRequestError(
            "the adversarial prompt set cannot be made",
            values=f"{len(bytes_of)} tokens, none of them a continuation byte of UTF-8",
            limit="its answers are confined to such tokens",
            remedy="leave it out: --sets code,mixed,repetitive",
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
    """Tables, records, rules, data and logs that the demonstration pair goes on repeating.

    Prompt lookup alone gives it 3.7 to 6 tokens per target pass there (1.8 on its held-out code). Lists
    of calls or assignments, and "the same text again, with one change", do not belong here: the pair is
    too small to copy them, and begins something new.

    Args:
        count: Texts wanted, all different.
        seed: The same seed gives the same texts.
    """
    drawn = random.Random(seed)
    texts: dict[str, None] = {}  # a set that keeps the order
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
