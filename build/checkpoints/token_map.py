"""Map the tokens of a target to those of a draft with another tokenizer.

Tokens are equal if their bytes are, however a tokenizer spells these: "Ġdef" and "▁def" are both " def".
Special tokens have no bytes; they are equal if they have the same name, and the first end token of the one
is that of the other. A draft proposes the target's tokens that have an equal one. It reads the other tokens
as several of its own that together have the same bytes.

Source: token-level intersection, Timor et al. 2025, arXiv:2502.05202. There, the draft reads the text of the
context, encoded again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from build.checkpoints.tokenizer_file import load_tokenizer
from pipelines.text.vocabulary import Vocabulary

FORMAT = 1

LEAST_SHARE = 0.5
"""Least share of a text's tokens that a draft must be able to propose.

With a share of c, even a perfect draft proposes only c / (1 - c) tokens in a row on average: one at 0.5,
which does not pay for its steps."""

SAMPLE = '''\
The river was low that summer, and the old bridge stood well above the water. "We should have left
earlier," she said, "but nobody could have known." In 1998, about 2,400 people lived in the valley; today
there are fewer than 900. What happened to the others? Most of them found work in the cities, where wages
were 30% higher.

To install the package, run `make install` and follow the instructions on the screen:

1. Choose a directory for the data (default: /var/lib/service).
2. Set the number of workers. More workers need more memory, but they do not always answer faster.
3. Open https://example.org/status?id=42 in a browser and check that the service is available.

def mean(values: list[float], default: float = 0.0) -> float:
    """Return the arithmetic mean of the values, or a default if there are none."""
    if not values:
        return default
    total = sum(value for value in values if value is not None)
    return total / len(values)

for (let i = 0; i < items.length; i++) { console.log(items[i].name); }

{"name": "example", "version": "1.2.0", "enabled": true, "tags": ["first", "second"], "limit": null}
'''
"""Prose, instructions and code in English, as a measure of how many tokens of a text a draft can propose."""

_Spelling = bytes | str


@dataclass(frozen=True)
class ModelTokens:
    """The tokens of one model.

    Attributes:
        tokenizer_path: Path of its ``tokenizer.json``.
        vocab_size: Rows of its embedding.
        end_ids: Tokens that end a text.
    """

    tokenizer_path: Path
    vocab_size: int
    end_ids: tuple[int, ...]


@dataclass(frozen=True)
class TokenMap:
    """How a draft proposes and reads the tokens of a target.

    Attributes:
        equal_ids: int32 [vocab_size of the target], the draft token that is equal to each target token; -1
            for none.
        draft_ids: Draft tokens as which the draft reads each target token; none for those that it leaves out.
        first_ids: Draft tokens before every text.
        num_tokens: Number of target tokens with bytes or a name.
        share: Share of the tokens of ``SAMPLE`` that have an equal one.
    """

    equal_ids: npt.NDArray[np.int32]
    draft_ids: tuple[tuple[int, ...], ...]
    first_ids: tuple[int, ...]
    num_tokens: int
    share: float

    @property
    def summary(self) -> str:
        """Return how many tokens both have."""
        num_equal = np.count_nonzero(self.equal_ids >= 0)
        return f"{num_equal:,} of the target's {self.num_tokens:,} tokens, {self.share:.0%} of a sample text"

    @property
    def notice(self) -> str:
        """Return a line for the user of the pair."""
        return f"draft: has another tokenizer, so it proposes only tokens that both have: {self.summary}"

    def to_json(self) -> str:
        """Return the content of ``token_map.json`` (``pipelines/text/token_map.py``)."""
        document = {"format": FORMAT, "first_ids": self.first_ids, "draft_ids": self.draft_ids}
        return json.dumps(document, separators=(",", ":")) + "\n"


def map_tokens(draft: ModelTokens, target: ModelTokens) -> TokenMap:
    """Map the tokens of a target to those of a draft.

    Raises:
        EngineLoadError: A tokenizer is neither BPE nor Unigram.
    """
    (ours, our_tokenizer, our_bytes), (theirs, their_tokenizer, their_bytes) = map(_read, (draft, target))
    their_first_ids = _first_ids(their_tokenizer)
    equal = {theirs[spelling]: ours[spelling] for spelling in theirs if spelling in ours}
    equal.update(_end_by_role(draft.end_ids, target.end_ids, equal))
    for token_id in their_first_ids:
        equal.pop(token_id, None)

    def as_read(token_id: int) -> tuple[int, ...]:
        if token_id in their_first_ids:  # the draft's own come first instead
            return ()
        if token_id in equal:  # a proposed token is read as exactly one: the draft's next step needs a row
            return (equal[token_id],)
        return tuple(our_bytes.spell(their_bytes.join([token_id])))

    equal_ids = np.full(target.vocab_size, -1, np.int32)
    equal_ids[list(equal)] = list(equal.values())
    sample = their_tokenizer.encode(SAMPLE, add_special_tokens=False).ids
    return TokenMap(
        equal_ids=equal_ids,
        draft_ids=tuple(map(as_read, range(target.vocab_size))),
        first_ids=_first_ids(our_tokenizer),
        num_tokens=len(theirs),
        share=sum(token_id in equal for token_id in sample) / len(sample),
    )


def _read(model: ModelTokens) -> tuple[dict[_Spelling, int], Tokenizer, Vocabulary]:
    """Return a model's tokens by their bytes, special ones by name; its tokenizer; and the bytes."""
    content = model.tokenizer_path.read_text(encoding="utf-8")
    vocabulary = Vocabulary.parse(content.encode(), model.tokenizer_path)
    added: list[Mapping[str, Any]] = json.loads(content).get("added_tokens") or []
    ids: list[tuple[_Spelling, int]] = [*vocabulary.id_of.items()]
    ids += ((token["content"], token["id"]) for token in added if token["special"])
    # Some tokenizers have special tokens, such as those for images, that the network lacks.
    known = {spelling: token_id for spelling, token_id in ids if token_id < model.vocab_size}
    return known, load_tokenizer(content), vocabulary


def _first_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the tokens that a tokenizer puts before every text."""
    text = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a").ids
    return tuple(whole[: whole.index(text[0])]) if text else ()


def _end_by_role(
    draft_ids: tuple[int, ...], target_ids: tuple[int, ...], equal: Mapping[int, int]
) -> dict[int, int]:
    """Return the first end tokens that have no equal one, as a pair; empty if a model has none."""
    theirs = [token_id for token_id in target_ids if token_id not in equal]
    ours = [token_id for token_id in draft_ids if token_id not in equal.values()]
    return {theirs[0]: ours[0]} if theirs and ours else {}
