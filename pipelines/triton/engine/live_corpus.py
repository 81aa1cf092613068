"""Follows the file with the corpus in which drafts are looked up, which operators can change at run time."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from pipelines.atomic_file import version_of
from pipelines.errors import InvalidRequestError
from pipelines.speculation.lookup.corpus import Corpus

_LOG = logging.getLogger(__name__)


class LiveCorpus:
    """Reads the corpus again whenever its file changes, on a thread, because that may take a second.

    A corpus that cannot be read is logged once, and nothing is looked up instead.

    Args:
        path: The file, which need not exist.
        vocab_size: Number of the target's tokens.
    """

    def __init__(self, path: Path, vocab_size: int) -> None:
        self._path = path
        self._vocab_size = vocab_size
        self._version = version_of(self._path)
        self._corpus: Corpus | None = None
        self._lock = threading.Lock()
        if self._version is not None:
            self._load()

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the corpus."""
        corpus = self._corpus
        return corpus.num_tokens if corpus else 0

    def read(self) -> Corpus | None:
        """Return the corpus that was read last; None for none."""
        version = version_of(self._path)
        if version != self._version:
            self._version = version
            threading.Thread(target=self._load, name="lookup-corpus", daemon=True).start()
        return self._corpus

    def _load(self) -> None:
        with self._lock:
            corpus = None
            if version_of(self._path) is not None:
                try:
                    corpus = Corpus.read(self._path, self._vocab_size)
                except InvalidRequestError as error:
                    _LOG.error("nothing is looked up in the corpus: %s", error)
            self._corpus = corpus
            _LOG.warning("drafts are looked up in a corpus of %d tokens", self.num_tokens)
