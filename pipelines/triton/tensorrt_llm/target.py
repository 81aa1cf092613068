"""Answers requests with the target alone: one request to NVIDIA's model, without a draft."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from pipelines.manifest import EngineFiles
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.speculation.token_ids import NO_TOKENS
from pipelines.text.vocabulary import Vocabulary
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.tensorrt_llm.end_of_output import OutputEnd
from pipelines.triton.tensorrt_llm.limits import refuse_unsupported
from pipelines.triton.tensorrt_llm.server_calls import ServerCalls
from pipelines.triton.tensorrt_llm.tensors import TOKENS, plain_tensors, streamed_tokens


class TensorRtLlmTarget:
    """Answers requests with NVIDIA's model of the target.

    Attributes:
        model: NVIDIA's model of the engine.
        vocabulary: Bytes of its tokens.
        end_ids: End tokens.
        padded_vocab_size: Columns of its logits.

    Args:
        parameters: Settings of the calling model.
        calls: Channel to the server.

    Raises:
        EngineLoadError: The engine is not the one for which the model was rendered, or its tokenizer changed.
    """

    def __init__(self, parameters: ModelParameters, calls: ServerCalls) -> None:
        files = EngineFiles(parameters.path("target_engine_dir"), parameters.text("target_engine_digest"))
        tokenizer = files.read("tokenizer.json")
        self.vocabulary = Vocabulary.parse(tokenizer, files.path("tokenizer.json"))
        self.end_ids = parameters.integers("end_ids")
        self.padded_vocab_size = parameters.integer("padded_vocab_size")
        self._vocab_size = parameters.integer("vocab_size")
        self._max_seq_len = parameters.integer("max_seq_len")
        self._calls = calls
        self._spell = _spelling(tokenizer)
        self.model = "target"
        self._numbers = itertools.count(1)

    def check(self, request: GenerationRequest) -> None:
        """Refuse a request that the target cannot answer.

        Raises:
            InvalidRequestError: A value is invalid or not supported by TensorRT-LLM.
        """
        request.validate(self._max_seq_len, self._vocab_size)
        refuse_unsupported(request)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Output, None]:
        """Stream the answer to one request; closing the generator cancels it.

        Raises:
            DraftproofError: See ``ServerCalls.stream``.
        """
        end = OutputEnd(request, self.vocabulary)
        tensors = plain_tensors(
            request, self.padded_vocab_size, [self._spell(word) for word in request.bad_words], streaming=True
        )
        responses = self._calls.stream(
            self.model,
            tensors,
            TOKENS,
            request_id=f"{request.request_id}/alone/{next(self._numbers)}",
            deadline_s=request.deadline_s,
        )
        num_output = 0
        async with aclosing(responses):
            async for outputs in responses:
                token_ids, is_stopped = end.take(streamed_tokens(outputs))
                num_output += len(token_ids)
                is_full = num_output == request.max_tokens
                reason = "stop" if is_stopped else "length" if is_full else ""
                if len(token_ids) or reason:
                    yield Output(token_ids, reason, is_final=bool(reason))
                if reason:
                    return
        yield Output(NO_TOKENS, "stop", is_final=True)


def _spelling(content: bytes) -> Any:
    """Return a function that tokenizes text."""
    from tokenizers import Tokenizer

    tokenizer: Any = Tokenizer.from_buffer(content)
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def spell(word: bytes) -> Sequence[int]:
        ids: list[int] = tokenizer.encode(word.decode("utf-8", "replace"), add_special_tokens=False).ids
        return ids

    return spell
