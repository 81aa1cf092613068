"""A scripted server whose answers depend on the whole request and on nothing else, unless changed."""

from __future__ import annotations

import dataclasses
import threading
import zlib
from collections.abc import Callable, Iterator

from pipelines.client import Chunk, CompletionRequest, Generation

Change = Callable[[CompletionRequest, str, Generation], Generation]
VOCABULARY = 50


def honest(request: CompletionRequest, model: str) -> Generation:
    """Return the target's answer; the other models draft two tokens per token asked for and accept half.

    If the request names no draft length, they report an adaptive one and draft two.
    """
    asked = dataclasses.replace(
        request, num_draft_tokens=None, max_tokens=0, min_tokens=0, num_log_probs=None
    )
    start = zlib.crc32(repr(asked).encode())
    ids = tuple((start >> position) % VOCABULARY for position in range(request.max_tokens))
    wanted, drafts = request.num_log_probs, model != "generate_target"
    chosen = 1 if request.num_draft_tokens is None else request.num_draft_tokens
    drafted = 2 * chosen if drafts else 0
    used = "adaptive" if request.num_draft_tokens is None else str(chosen)
    of_prompt = (
        tuple(-(start >> place) % 97 / 7 for place in range(3)) if request.return_prompt_log_probs else ()
    )
    return Generation(
        text="".join(chr(65 + token_id) for token_id in ids),
        output_ids=ids,
        accepted_mask=(),
        finish_reason="length",
        num_rounds=len(ids) if drafts else 0,
        total_draft_tokens=drafted,
        total_accepted_draft_tokens=drafted // 2,
        accepted_per_position=(),
        ttft_s=None,
        e2e_latency_s=1.0,
        seed=request.seed if request.seed is not None else start,
        draft_length=used if drafts else "",
        log_probs=() if wanted is None else tuple(-token_id / 7 for token_id in ids),
        top_log_probs=tuple(alternatives(token_id, wanted) for token_id in ids) if wanted else (),
        prompt_log_probs=of_prompt,
        prompt_top_log_probs=tuple(alternatives(place, wanted) for place in range(3))
        if of_prompt and wanted
        else (),
    )


def alternatives(token_id: int, count: int) -> tuple[tuple[int, float], ...]:
    """Return the token itself and those above it."""
    return tuple((token_id + place, -(token_id + place) / 7) for place in range(count))


class ScriptedStream:
    """A stream of one chunk per token, then an empty last one."""

    def __init__(self, client: ScriptedClient, request: CompletionRequest, model: str) -> None:
        self._client = client
        self._request = request
        self._given = client.answer(request, model)

    def __iter__(self) -> Iterator[Chunk]:
        for place, token_id in enumerate(self._given.output_ids, start=1):
            yield Chunk("?", (token_id,), (), "", 0.0, place)
        yield Chunk("", (), (), self._given.finish_reason, 0.0, len(self._given.output_ids))

    def result(self) -> Generation:
        return self._given

    def close(self) -> None:
        self._client.num_closed += 1


class ScriptedClient:
    """A replacement for ``pipelines.client.Client``; all clients of a proof may be the same one.

    ``change``: gets the request, the model and the honest answer, and returns the answer to give.
    """

    def __init__(self, change: Change = lambda request, model, given: given) -> None:
        self.asked: list[tuple[str, CompletionRequest, bool]] = []
        self.num_closed = 0
        self._change = change
        self._lock = threading.Lock()

    def answer(self, request: CompletionRequest, model: str) -> Generation:
        return self._change(request, model, honest(request, model))

    def generate(self, request: CompletionRequest, model: str) -> Generation:
        with self._lock:
            self.asked.append((model, request, False))
        return self.answer(request, model)

    def stream(self, request: CompletionRequest, model: str) -> ScriptedStream:
        with self._lock:
            self.asked.append((model, request, True))
        return ScriptedStream(self, request, model)

    def server_version(self) -> str:
        return "2.51.0"

    def model_parameters(self, model: str) -> dict[str, str]:
        return {"max_draft_len": "2", "max_batch_size": "2", "max_queue_size": "3"}

    def close(self) -> None:
        """Close nothing."""

    def __enter__(self) -> ScriptedClient:
        return self

    def __exit__(self, *_: object) -> None:
        pass
