"""Computes logits with llama.cpp, by the C interface of the library in the package ``xllamacpp``."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

from benchmarks.peers.environment import ensure_environment
from benchmarks.quality.engines import Logits


class _Batch(ctypes.Structure):
    """``llama_batch``."""

    _fields_ = [
        ("num_tokens", ctypes.c_int32),
        ("tokens", ctypes.POINTER(ctypes.c_int32)),
        ("embeddings", ctypes.c_void_p),
        ("positions", ctypes.POINTER(ctypes.c_int32)),
        ("num_sequences", ctypes.POINTER(ctypes.c_int32)),
        ("sequences", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("has_logits", ctypes.POINTER(ctypes.c_int8)),
    ]


class _Settings(ctypes.Structure):
    """``llama_model_params`` or ``llama_context_params``, and room behind: the library knows the fields."""

    _fields_ = [("words", ctypes.c_uint32 * 128)]


_SILENT = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)


class LlamaCpp:
    """A model of a GGUF file, with one sequence.

    Args:
        file: The file.
        num_positions: Longest text, tokens.
        num_threads: Threads that compute.

    Raises:
        PeerError: The package cannot be installed.
    """

    def __init__(self, file: Path, num_positions: int, num_threads: int) -> None:
        environment = ensure_environment("llama-cpp").parents[1]
        (path,) = environment.glob("lib/python*/site-packages/xllamacpp/xllamacpp*.so")
        self._library = library = ctypes.CDLL(str(path))
        for name in ("llama_model_default_params", "llama_context_default_params"):
            getattr(library, name).restype = _Settings
        library.llama_batch_init.restype = _Batch
        library.llama_get_logits.restype = ctypes.POINTER(ctypes.c_float)
        library.llama_log_set(_SILENT, None)
        library.llama_backend_init()
        settings = library.llama_model_default_params()
        self._model = self._call("llama_model_load_from_file", str(file).encode(), settings)
        settings = library.llama_context_default_params()
        for place in range(3):  # tokens of a context, a batch and a part of it
            settings.words[place] = num_positions
        self._context = self._call("llama_init_from_model", self._model, settings)
        library.llama_set_n_threads(self._context, num_threads, num_threads)
        self._num_logits = library.llama_n_vocab(self._call("llama_model_get_vocab", self._model))
        self._batch = library.llama_batch_init(num_positions, 0, 1)

    def _call(self, name: str, *arguments: object) -> ctypes.c_void_p:
        function = getattr(self._library, name)
        function.restype = ctypes.c_void_p
        return ctypes.c_void_p(function(*arguments))

    def logits(self, ids: list[int], start: int = 0) -> Logits:
        """Compute the logits of tokens after the ``start`` tokens before them, [tokens, vocab]."""
        batch, library = self._batch, self._library
        batch.num_tokens = len(ids)
        for index, token in enumerate(ids):
            batch.tokens[index], batch.positions[index] = token, start + index
            batch.num_sequences[index], batch.sequences[index][0] = 1, 0
            batch.has_logits[index] = 1
        if start == 0:
            library.llama_memory_clear(self._call("llama_get_memory", self._context), True)
        if library.llama_decode(self._context, batch):
            raise RuntimeError("llama.cpp did not compute a step")
        shape = len(ids), self._num_logits
        return np.ctypeslib.as_array(library.llama_get_logits(self._context), shape).copy()

    def close(self) -> None:
        """Free the model."""
        self._library.llama_batch_free(self._batch)
        self._library.llama_free(self._context)
        self._library.llama_model_free(self._model)
