"""The target of TensorRT-LLM alone: one request to NVIDIA's model, no rounds, no draft."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.serving.output_end import OutputEnd
from pipelines.serving.parameters import ModelParameters
from pipelines.serving.server_calls import ServerCalls
from pipelines.serving.tensorrt_llm_limits import refuse_unsupported
from pipelines.serving.tensorrt_llm_tensors import LOG_PROBS, TOKENS, plain_tensors, streamed_tokens
from pipelines.speculation.log_probs import LogProbs
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.speculation.token_ids import NO_TOKENS, TokenIds
from pipelines.text.vocabulary import Vocabulary


class TensorRtLlmTarget:
    """Answers requests with what NVIDIA's model of the target generates.

    Attributes:
        model: NVIDIA's model of the engine.
        vocabulary: Bytes of its tokens.
        end_ids: Tokens that end a text.
        padded_vocab_size: Columns of its logits.

    Args:
        parameters: The settings of the model that asks.
        calls: To the server.
    """

    def __init__(self, parameters: ModelParameters, calls: ServerCalls) -> None:
        path = parameters.path("target_engine_dir") / "tokenizer.json"
        self.vocabulary = Vocabulary.from_file(path)
        self.end_ids = parameters.integers("end_ids")
        self.padded_vocab_size = parameters.integer("padded_vocab_size")
        self._vocab_size = parameters.integer("vocab_size")
        self._max_seq_len = parameters.integer("max_seq_len")
        self._calls = calls
        self._spell = _spelling(path)
        self.model = parameters.text("target_model")
        self._numbers = itertools.count(1)

    def check(self, request: GenerationRequest) -> None:
        """Refuse what the target cannot answer.

        Raises:
            InvalidRequestError: A value has no meaning, or none to TensorRT-LLM.
        """
        request.validate(self._max_seq_len, self._vocab_size)
        refuse_unsupported(request)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Output, None]:
        """Answer one request as the tokens come; leaving the generator cancels it.

        Raises:
            DraftproofError: As ``ServerCalls.stream``.
        """
        end = OutputEnd(request, self.vocabulary)
        names = [*TOKENS, LOG_PROBS] if request.num_log_probs is not None else TOKENS
        tensors = plain_tensors(
            request, self.padded_vocab_size, [self._spell(word) for word in request.bad_words], streaming=True
        )
        responses = self._calls.stream(
            self.model,
            tensors,
            names,
            request_id=f"{request.request_id}/alone/{next(self._numbers)}",
            deadline_s=request.deadline_s,
        )
        num_output = 0
        async with aclosing(responses):
            async for outputs in responses:
                new_ids = streamed_tokens(outputs)
                token_ids, is_stopped = end.take(new_ids)
                num_output += len(token_ids)
                is_full = num_output == request.max_tokens
                reason = "stop" if is_stopped else "length" if is_full else ""
                if len(token_ids) or reason:
                    log_probs = _log_probs(outputs, len(new_ids), token_ids)
                    yield Output(token_ids, reason, is_final=bool(reason), log_probs=log_probs)
                if reason:
                    return
        yield Output(NO_TOKENS, "stop", is_final=True)


def _log_probs(outputs: dict[str, npt.NDArray[Any]], num_new: int, token_ids: TokenIds) -> LogProbs | None:
    if LOG_PROBS not in outputs:
        return None
    # Whether a streamed response repeats those of earlier tokens is not documented: the last are new.
    values = outputs[LOG_PROBS].reshape(-1)[-num_new:][: len(token_ids)]
    count = len(token_ids)
    none = np.empty((count, 0), np.float32)
    return LogProbs(np.array(values, np.float32), np.empty((count, 0), np.int32), none)


def _spelling(path: Path) -> Any:
    """Text to the tokens that the tokenizer makes of it."""
    from tokenizers import Tokenizer

    tokenizer: Any = Tokenizer.from_file(str(path))

    def spell(word: bytes) -> Sequence[int]:
        ids: list[int] = tokenizer.encode(word.decode("utf-8", "replace"), add_special_tokens=False).ids
        return ids

    return spell
