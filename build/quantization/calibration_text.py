"""Prepare the text on which ModelOpt calibrates activations.

The built-in text is the source code of the standard library, which comes with every Python. For a model that
serves other kinds of text, name a file of such text in the recipe.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tokenizers import Tokenizer

from build.tensorrt_llm.settings import Calibration
from pipelines.errors import CheckpointError
from pipelines.places import located

# Upper bound, so that a section of text is not tokenized further than needed.
_MOST_CHARACTERS_PER_TOKEN = 16


@dataclass(frozen=True)
class CalibrationText:
    """Samples for calibration.

    Attributes:
        name: Name of the text, for reports.
        sha256: Hash of the text.
        pieces: ``num_samples`` lists of ``seq_len`` ids each.
    """

    name: str
    sha256: str
    pieces: Sequence[Sequence[int]]

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens in all samples."""
        return sum(len(piece) for piece in self.pieces)


def text_path(calibration: Calibration) -> Path | None:
    """Return the path of the recipe's text; None for the built-in one."""
    return None if calibration.text is None else located(calibration.text)


def _read(path: Path | None) -> tuple[str, str]:
    """Return name and content of a text."""
    if path is None:
        modules = sorted(Path(sysconfig.get_path("stdlib")).glob("[a-z]*.py"))
        return "the standard library", "\n".join(each.read_text(encoding="utf-8") for each in modules)
    try:
        return path.name, path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"the calibration text {path} cannot be read as UTF-8: {' '.join(str(error).split())}",
            "correct tensorrt_llm.calibration.text in the recipe, or remove it",
        ) from None


def read_calibration_text(calibration: Calibration, tokenizer_path: Path) -> CalibrationText:
    """Split a text into one section per sample, and tokenize the beginning of each.

    Args:
        calibration: Text, and number and length of the samples.
        tokenizer_path: ``tokenizer.json``, which also adds the special tokens of its model.

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
                f"the calibration text {name} is too short: its {len(text)} characters are not {count} "
                f"samples of {length} tokens; sample {len(pieces) + 1} has {len(ids)}",
                "use a longer text, or lower tensorrt_llm.calibration.num_samples or seq_len",
            )
        pieces.append(ids)
    return CalibrationText(name, hashlib.sha256(text.encode()).hexdigest(), pieces)
