"""Text on which ModelOpt measures activations, as pieces of tokens.

Built in is the standard library's source text, which comes with every Python, less the modules that the
demonstration pair is judged on. It is code: a model that will meet other text wants a file of that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tokenizers import Tokenizer

from build.demo_pair.corpus import load_corpus
from build.recipe import REPOSITORY_ROOT, Calibration
from pipelines.errors import CheckpointError

# No text takes more characters for a token; a longer stretch need not be tokenized.
_MOST_CHARACTERS_PER_TOKEN = 16


@dataclass(frozen=True)
class CalibrationText:
    """Pieces of a text.

    Attributes:
        name: What it is, for reports.
        sha256: Of the text.
        pieces: ``num_samples`` lists of ``seq_len`` ids each.
    """

    name: str
    sha256: str
    pieces: Sequence[Sequence[int]]

    @property
    def num_tokens(self) -> int:
        """Tokens of all pieces."""
        return sum(len(piece) for piece in self.pieces)


def text_path(calibration: Calibration) -> Path | None:
    """The recipe's file; None for the built-in text."""
    return None if calibration.text is None else REPOSITORY_ROOT / calibration.text


def _read(path: Path | None) -> tuple[str, str]:
    """Name and content of a text."""
    if path is None:
        library = load_corpus().library
        return "the standard library", "\n".join(document.text for document in library)
    try:
        return path.name, path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"the calibration text {path} cannot be read",
            values=" ".join(str(error).split()),
            limit="a text file in UTF-8",
            remedy="correct tensorrt_llm.calibration.text in the recipe, or leave it out",
        ) from None


def read_calibration_text(calibration: Calibration, tokenizer_path: Path) -> CalibrationText:
    """Cut a text into as many stretches as samples are wanted, and take the beginning of each.

    Args:
        calibration: Which text, how many pieces, how long.
        tokenizer_path: ``tokenizer.json``; pieces begin as its model's texts do, with the special tokens.

    Raises:
        CheckpointError: The text cannot be read or is too short.
    """
    name, text = _read(text_path(calibration))
    tokenizer = Tokenizer.from_file(str(tokenizer_path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    count, length = calibration.num_samples, calibration.seq_len
    borders = [index * len(text) // count for index in range(count + 1)]
    pieces: list[list[int]] = []
    for begin, end in pairwise(borders):
        stretch = text[begin : min(end, begin + _MOST_CHARACTERS_PER_TOKEN * length)]
        ids = tokenizer.encode(stretch).ids[:length]
        if len(ids) < length:
            raise CheckpointError(
                f"the calibration text is too short: {name}",
                values=f"{len(text)} characters; sample {len(pieces) + 1} of {count} has {len(ids)} tokens",
                limit=f"{count} samples of {length} tokens that do not overlap",
                remedy="give a longer text, or lower tensorrt_llm.calibration.num_samples or seq_len",
            )
        pieces.append(ids)
    return CalibrationText(name, hashlib.sha256(text.encode()).hexdigest(), pieces)
