"""Train a byte-level BPE tokenizer, which can encode any text without loss."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from build.quantization.corpus import DemoPairError, Document

VOCABULARY_SIZE = 2048
"""Number of token ids, including the end token."""

END_OF_TEXT = "<|endoftext|>"
"""End token, which separates documents in training; it has the last id, so that the id is not zero."""

END_ID = VOCABULARY_SIZE - 1
"""Id of ``END_OF_TEXT``."""

TokenArray = npt.NDArray[np.int64]
"""Token ids, one dimension."""


def train_tokenizer(documents: Iterable[Document]) -> Tokenizer:
    """Train a tokenizer of ``VOCABULARY_SIZE`` ids.

    Args:
        documents: Training documents, without held-out text, which would influence the merges.

    Returns:
        The tokenizer, with ``END_OF_TEXT`` as its last id.

    Raises:
        DemoPairError: The text is too short to fill the vocabulary.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE - 1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((document.text for document in documents), trainer)
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    if tokenizer.get_vocab_size() != VOCABULARY_SIZE or tokenizer.token_to_id(END_OF_TEXT) != END_ID:
        raise DemoPairError(
            f"the tokenizer has {tokenizer.get_vocab_size()} ids, and the models {VOCABULARY_SIZE}",
            "train it on more text",
        )
    return tokenizer


def encode_documents(tokenizer: Tokenizer, documents: Iterable[Document]) -> TokenArray:
    """Encode documents into one stream, each followed by ``END_ID``."""
    encodings = tokenizer.encode_batch([document.text for document in documents], add_special_tokens=False)
    parts = [np.asarray([*encoding.ids, END_ID], dtype=np.int64) for encoding in encodings]
    return np.concatenate(parts)
