"""Collects the new tokens of an answer into chunks, each with the outputs of one response."""

from __future__ import annotations

import math
import time

import numpy as np
import numpy.typing as npt

from pipelines.speculation.log_probs import LogProbs
from pipelines.speculation.request import Output
from pipelines.speculation.token_ids import NO_TOKENS, Logits
from pipelines.text.chunk_boundary import ChunkBoundary
from pipelines.text.stop_words import cut_at_stop_word
from pipelines.text.vocabulary import Vocabulary
from pipelines.wire.calls import Tensors
from pipelines.wire.engine_request import GenerationCall
from pipelines.wire.tensors import scalar_tensor, text_tensor

CHUNK_INTERVAL_S = 0.02  # between two chunks of an answer (docs/decisions/gateway.md)

_NO_LOGITS: Logits = np.empty((0, 0), dtype=np.float32)


class ChunkStream:
    """Holds tokens until they may be sent: at text boundaries if streaming, otherwise at the end.

    When streaming, the first and the last chunk are sent without delay, the others at least
    ``CHUNK_INTERVAL_S`` apart.

    Args:
        vocabulary: Bytes of the tokens.
        call: The request. Its stop words are cut off the end of the text if they begin after ``min_tokens``.
    """

    def __init__(self, vocabulary: Vocabulary, call: GenerationCall) -> None:
        request = self._request = call.request
        self._vocabulary = vocabulary
        self._stop_words = request.stop_words
        num_known = len(request.input_ids) - request.num_prompt_tokens
        self._min_tokens = max(0, request.sampling.min_tokens - num_known)
        self._streaming = call.streaming
        self._boundary = ChunkBoundary(vocabulary, request.stop_words, self._min_tokens)
        self._held_ids: list[int] = []
        self._sent_at_s = -math.inf
        self._held_sources: list[int] = []
        self._no_log_probs = LogProbs.of(_NO_LOGITS, NO_TOKENS, request.num_log_probs or 0)
        self._held_log_probs = [self._no_log_probs]
        self._prompt_log_probs = self._no_log_probs
        self._num_sent = 0
        self._num_cached: int | None = None
        self._cum_log_prob = 0.0

    def push(self, output: Output, sources: npt.NDArray[np.int32] | None = None) -> Tensors | None:
        """Add new tokens.

        Args:
            output: The tokens.
            sources: int32 [n], where each came from (``speculation.loop.TOKEN_SOURCES``); None if all are the
                target's.

        Returns:
            The outputs of the response to send now, except for counts of drafting; None if there is none yet.
            Never None for the last output.
        """
        ids = output.token_ids.tolist()
        if self._num_cached is None:  # later rounds find what earlier ones computed
            self._num_cached = output.num_cached
        if sources is not None:
            self._held_sources += sources.tolist()
        if output.log_probs is not None:
            self._held_log_probs.append(output.log_probs)
        if output.prompt_log_probs is not None:
            self._prompt_log_probs = output.prompt_log_probs
        self._held_ids += self._boundary.release(ids, is_final=output.is_final) if self._streaming else ids
        if not output.is_final and not (self._held_ids and self._streaming and self._is_due()):
            return None
        released, self._held_ids = self._held_ids, []
        outputs = self._outputs(released, output)
        return outputs if sources is None else {**outputs, **self._released_sources(len(released))}

    def _is_due(self) -> bool:
        now_s = time.monotonic()
        if now_s < self._sent_at_s + CHUNK_INTERVAL_S:
            return False
        self._sent_at_s = now_s
        return True

    def _outputs(self, released: list[int], output: Output) -> Tensors:
        """Return what both models have in every response; empty if not requested.

        Outputs of the prompt are there only if they are requested, and empty after the first response.
        """
        text_length = self._text_length(released)
        self._num_sent += len(released)
        whole = LogProbs.concatenate(self._held_log_probs)
        log_probs, rest = whole.take(slice(len(released))), whole.take(slice(len(released), None))
        self._held_log_probs = [rest]
        # One by one, so that the sum does not depend on the chunk boundaries.
        for log_prob in log_probs.token_log_probs.tolist():
            self._cum_log_prob += log_prob
        outputs = {
            "output_ids": np.array(released, np.int32).reshape(1, 1, -1),
            "sequence_length": scalar_tensor(self._num_sent, np.int32),
            "text_length": scalar_tensor(text_length, np.int32),
            "cached_prompt_tokens": scalar_tensor(self._num_cached or 0, np.int32),
            "finish_reason": text_tensor(output.finish_reason),
            "output_seed": scalar_tensor(self._request.sampling.seed, np.uint64),
            "output_log_probs": log_probs.token_log_probs.reshape(1, 1, -1),
            "cum_log_probs": scalar_tensor(self._cum_log_prob, np.float32),
            "top_log_prob_ids": log_probs.top_ids[np.newaxis],
            "top_log_probs": log_probs.top_log_probs[np.newaxis],
        }
        if self._request.prompt_log_probs:
            of_prompt, self._prompt_log_probs = self._prompt_log_probs, self._no_log_probs
            outputs["prompt_log_probs"] = of_prompt.token_log_probs.reshape(1, 1, -1)
            outputs["prompt_top_log_prob_ids"] = of_prompt.top_ids[np.newaxis]
            outputs["prompt_top_log_probs"] = of_prompt.top_log_probs[np.newaxis]
        return outputs

    def _released_sources(self, count: int) -> Tensors:
        sources = np.array([self._held_sources[:count]], np.int32)
        self._held_sources = self._held_sources[count:]
        return {"accepted_mask": sources != 0, "token_sources": sources}

    def _text_length(self, released: list[int]) -> int:
        """Return the number of bytes of the released tokens, up to a stop word."""
        num_before = max(0, self._min_tokens - self._num_sent)
        before = self._vocabulary.join(released[:num_before])
        after = self._vocabulary.join(released[num_before:])
        return len(before) + len(cut_at_stop_word(after, self._stop_words))
