"""A byte-level BPE tokenizer: every token stands for fixed bytes, and any text survives the round trip."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from build.demo_pair.corpus import DemoPairError, Document

VOCABULARY_SIZE = 2048
"""Number of token ids, the end-of-text token among them."""

END_OF_TEXT = "<|endoftext|>"
"""Separates documents in training; has the last id, so that no valid id marking the end is zero."""

END_ID = VOCABULARY_SIZE - 1
"""Id of :data:`END_OF_TEXT`."""

TokenArray = npt.NDArray[np.int64]
"""Token ids, one dimension."""


def train_tokenizer(documents: Iterable[Document]) -> Tokenizer:
    """Trains a tokenizer of :data:`VOCABULARY_SIZE` ids on the given documents.

    Args:
        documents: Training documents only; held-out text would leak into the merges.

    Returns:
        The tokenizer, with :data:`END_OF_TEXT` as its last id.

    Raises:
        DemoPairError: The text is too small to fill the vocabulary.
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
            "the tokenizer does not fill the vocabulary",
            values=f"{tokenizer.get_vocab_size()} ids",
            limit=f"the models have exactly {VOCABULARY_SIZE}",
            remedy="give it more text to learn merges from",
        )
    return tokenizer


def encode_documents(tokenizer: Tokenizer, documents: Iterable[Document]) -> TokenArray:
    """Encodes documents into one stream, each followed by :data:`END_ID`."""
    encodings = tokenizer.encode_batch([document.text for document in documents], add_special_tokens=False)
    parts = [np.asarray([*encoding.ids, END_ID], dtype=np.int64) for encoding in encodings]
    return np.concatenate(parts)
