"""Run llama.cpp's server on a GGUF file, with its own speculative decoding if there is a draft.

The interpreter of the environment ``llama-cpp`` runs this program.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.peers.protocol import Loaded, LoadRequest, Outcome, RunRequest, serve


class _Server:
    """The server of the package ``xllamacpp``, in this process."""

    def __init__(self, request: LoadRequest) -> None:
        import xllamacpp

        settings = xllamacpp.CommonParams()
        settings.verbosity = -1
        settings.model.path = request.target
        settings.n_parallel = request.max_concurrency
        settings.n_ctx = request.max_seq_len * request.max_concurrency  # of all requests together
        threads = [settings.cpuparams, settings.cpuparams_batch]
        if request.draft is not None:
            kinds, draft = xllamacpp.common_speculative_type, settings.speculative.draft
            settings.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
            draft.mparams.path = request.draft
            draft.n_max = request.num_draft_tokens
            threads += [draft.cpuparams, draft.cpuparams_batch]
        for each in threads:
            each.n_threads = request.num_threads
        self._server = xllamacpp.Server(settings)
        version = xllamacpp.__version__
        self.loaded = Loaded({"xllamacpp": version}, "the GGUF file as it is; float16 caches")

    def run(self, request: RunRequest) -> Outcome:
        """Answer prompts."""

        def answer(prompt: tuple[int, ...]) -> tuple[tuple[int, ...], float]:
            begun_s = time.monotonic()
            ids = self._answer(prompt, request.max_tokens)
            return ids, time.monotonic() - begun_s

        started_s = time.monotonic()
        with ThreadPoolExecutor(request.num_at_once) as pool:
            done = list(pool.map(answer, request.prompts))
        answers, seconds = zip(*done, strict=True)
        return Outcome(answers, seconds, time.monotonic() - started_s)

    def _answer(self, prompt: tuple[int, ...], max_tokens: int) -> tuple[int, ...]:
        body = {
            "prompt": prompt,
            "n_predict": max_tokens,
            "temperature": 0.0,
            "cache_prompt": True,
            "return_tokens": True,
        }
        asked = urllib.request.Request(
            f"{self._server.listening_address}/completion",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(asked) as response:
            document: dict[str, Any] = json.load(response)
        return tuple(document["tokens"])


if __name__ == "__main__":
    sys.exit(serve(_Server))
