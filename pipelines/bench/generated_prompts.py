"""Generate prompts that no draft can predict, and repetitive ones that prompt lookup predicts well.

They were chosen by probing the demonstration pair, whose draft was trained to imitate its target. On random
letters, base64 or other scripts the draft still agrees in four of five tokens, because greedy text soon
becomes loops of code; and a high temperature increases agreement, because both share the noise.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from pipelines.client import CompletionRequest
from pipelines.errors import InvalidRequestError

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
            "the adversarial prompt set cannot be generated",
            values=f"{len(bytes_of)} tokens, none of them a continuation byte of UTF-8",
            limit="such tokens, to which its answers are restricted",
            remedy="name other sets with --sets",
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
