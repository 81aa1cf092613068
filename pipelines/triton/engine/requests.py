"""Turns a request as it was received into one for the loop and the executor."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from pipelines.errors import InvalidRequestError
from pipelines.speculation.request import GenerationRequest
from pipelines.text.guides import GUIDE_TYPES, Guide
from pipelines.text.vocabulary import Vocabulary
from pipelines.text.words import WordKind, check_words
from pipelines.wire.messages import EngineRequest

MAX_STOP_TOKEN_IDS = 32
MAX_PREDICTION_IDS = 1 << 20


def generation_request(
    asked: EngineRequest, request_id: str, vocabulary: Vocabulary, end_ids: tuple[int, ...]
) -> GenerationRequest:
    """Return the request for the engines, without the grammar of its guide. Its time limit begins now.

    Args:
        asked: The request.
        request_id: Id of the request inside the server.
        vocabulary: Bytes of the tokens.
        end_ids: End tokens of the engine. The request's own ``end_id`` replaces them.

    Raises:
        InvalidRequestError: A value is none that a request may have. Ranges that depend on the engine are
            checked later.
    """
    if asked.end_id is not None:
        end_ids = (asked.end_id,) if asked.end_id >= 0 else ()
    _check_tokens("stop_token_ids", asked.stop_token_ids, MAX_STOP_TOKEN_IDS, vocabulary)
    _check_tokens("prediction_ids", asked.prediction_ids, MAX_PREDICTION_IDS, vocabulary)
    check_words(asked.stop, WordKind.STOP)
    check_words(asked.bad_words, WordKind.BAD)
    return GenerationRequest(
        request_id=request_id,
        input_ids=np.array(asked.input_ids, np.int32),
        max_tokens=asked.max_tokens,
        prompt_length=asked.prompt_length,
        sampling=asked.sampling,
        end_ids=(*end_ids, *asked.stop_token_ids),
        stop_words=asked.stop,
        bad_words=asked.bad_words,
        num_log_probs=asked.num_log_probs,
        prompt_log_probs=asked.return_prompt_log_probs,
        deadline_s=time.monotonic() + asked.timeout_us / 1e6 if asked.timeout_us else None,
        cache_salt=asked.cache_salt,
    )


def guide_of(asked: EngineRequest) -> Guide | None:
    """Return what the output follows; None for nothing.

    Raises:
        InvalidRequestError: It has no type or no text.
    """
    if asked.guide is None:
        return None
    kind, text = asked.guide
    if not kind or (not text and kind != "json"):
        raise InvalidRequestError(
            f"guided_decoding_guide_type={kind!r:.100} with a guide of {len(text)} characters",
            f"send one of {', '.join(GUIDE_TYPES)} and a guide, without which only json has a meaning",
        )
    return Guide(kind, text)


def _check_tokens(name: str, ids: Sequence[int], most: int, vocabulary: Vocabulary) -> None:
    if len(ids) > most or (ids and not 0 <= min(ids) <= max(ids) < vocabulary.size):
        raise InvalidRequestError(
            f"{name} has {len(ids)} ids, {list(ids[:20])!r:.200}: at most {most} may be sent, each from 0 to "
            f"{vocabulary.size - 1}",
            "send tokens of the model's vocabulary",
        )
