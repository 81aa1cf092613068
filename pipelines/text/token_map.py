"""Translates a target's tokens to those of a draft with another tokenizer.

The engine of such a draft reads its own tokens and returns the logits of the target's tokens. So requests and
answers hold the target's tokens, and only what the engine reads is translated. Each token is translated on
its own: new tokens add to a translated context and never change it, so its KV cache stays valid.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pipelines.errors import EngineLoadError

TOKEN_MAP_FILE = "token_map.json"
"""File of an engine directory, written by ``build/checkpoints/token_map.py``."""

FORMAT = 1

TokenIds = npt.NDArray[np.int32]


@dataclass(frozen=True)
class TokenMap:
    """The draft's tokens for each token of the target.

    Attributes:
        first_ids: int32 [n], draft tokens before every text, such as BOS.
        draft_ids: int32, the draft tokens of all target tokens one after another.
        begins: int64 [vocab_size + 1], where the draft tokens of each target token begin.
    """

    first_ids: TokenIds
    draft_ids: TokenIds
    begins: npt.NDArray[np.int64]

    @classmethod
    def parse(cls, content: bytes, path: Path) -> TokenMap:
        """Parse the content of ``token_map.json``.

        Args:
            content: Content of the file.
            path: Path of the file, for errors.

        Raises:
            EngineLoadError: The file has another format.
        """
        try:
            document = json.loads(content)
            if document["format"] != FORMAT:
                raise ValueError(f"format {document['format']}")
            draft_ids: list[list[int]] = document["draft_ids"]
            return cls(
                np.array(document["first_ids"], np.int32),
                np.fromiter(chain.from_iterable(draft_ids), np.int32),
                np.cumsum([0, *map(len, draft_ids)]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise EngineLoadError(
                f"the map of the draft's tokens cannot be read in format {FORMAT}: {path}: {error!r}",
                "run 'draftproof engines'",
            ) from error

    def translate_prompt(self, token_ids: TokenIds) -> TokenIds:
        """Return the draft tokens of the first tokens of a text, int32 [m]."""
        return np.concatenate((self.first_ids, self.translate(token_ids)))

    def translate(self, token_ids: TokenIds) -> TokenIds:
        """Return the draft tokens of consecutive target tokens, int32 [m]; some may have several or none."""
        begins = self.begins[token_ids]
        counts = self.begins[token_ids + 1] - begins
        ends = np.cumsum(counts)
        places = np.repeat(begins - ends + counts, counts) + np.arange(counts.sum())
        translated: TokenIds = self.draft_ids[places]
        return translated
