"""A peer's program with no engine: answers each prompt with numbers that follow from it.

``python -m tests.stand_in_peer MODE``; modes: ``good``; ``noisy`` prints to stdout like a library;
``different`` answers otherwise when it speculates; ``no-load`` fails to load; ``dies`` and ``hangs`` when
asked; ``short`` loses an answer.
"""

from __future__ import annotations

import sys
import time

from pipelines.peers.orders import Loaded, LoadOrder, Outcome, RunOrder
from pipelines.peers.program import serve

MODE = sys.argv[1]


class StandInPeer:
    def __init__(self, order: LoadOrder) -> None:
        if MODE == "no-load":
            raise MemoryError("no room for\nthe weights")
        self._order = order
        self.loaded = Loaded({"stand-in": "1.0"}, f"{order.num_threads} threads")

    def run(self, order: RunOrder) -> Outcome:
        if MODE == "noisy":
            print("a library talks", flush=True)
        if MODE == "dies":
            print("fatal: out of luck", file=sys.stderr, flush=True)
            sys.exit(3)
        if MODE == "hangs":
            time.sleep(600)
        answers = [self._answer(prompt, order.max_tokens) for prompt in order.prompts]
        if MODE == "short":
            answers.pop()
        return Outcome(tuple(answers), tuple(0.5 for _ in answers), 2.0)

    def _answer(self, prompt: tuple[int, ...], max_tokens: int) -> tuple[int, ...]:
        shift = int(MODE == "different" and self._order.num_draft_tokens > 0)
        return (*(prompt[0] + index + shift for index in range(max_tokens - 1)), self._order.end_ids[0])


if __name__ == "__main__":
    sys.exit(serve(StandInPeer))
