"""A peer program without an engine: it derives the numbers of each answer from the prompt.

``python -m tests.support.stand_in_peer MODE``; modes: ``good``; ``noisy`` prints to stdout like a library;
``different`` gives other answers when it speculates; ``no-load`` fails to load; ``dies`` and ``hangs`` do so
when asked; ``short`` loses an answer.
"""

from __future__ import annotations

import sys
import time

from benchmarks.peers.protocol import Loaded, LoadRequest, Outcome, RunRequest, serve

MODE = sys.argv[1]


class StandInPeer:
    def __init__(self, request: LoadRequest) -> None:
        if MODE == "no-load":
            raise MemoryError("no room for\nthe weights")
        self._request = request
        self.loaded = Loaded({"stand-in": "1.0"}, f"{request.num_threads} threads")

    def run(self, request: RunRequest) -> Outcome:
        if MODE == "noisy":
            print("a library talks", flush=True)
        if MODE == "dies":
            print("fatal: out of luck", file=sys.stderr, flush=True)
            sys.exit(3)
        if MODE == "hangs":
            time.sleep(600)
        answers = [self._answer(prompt, request.max_tokens) for prompt in request.prompts]
        if MODE == "short":
            answers.pop()
        return Outcome(tuple(answers), tuple(0.5 for _ in answers), 2.0)

    def _answer(self, prompt: tuple[int, ...], max_tokens: int) -> tuple[int, ...]:
        shift = int(MODE == "different" and self._request.num_draft_tokens > 0)
        return (*(prompt[0] + index + shift for index in range(max_tokens - 1)), self._request.end_ids[0])


if __name__ == "__main__":
    sys.exit(serve(StandInPeer))
