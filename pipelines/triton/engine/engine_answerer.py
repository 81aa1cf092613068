"""Answers requests with one engine, behind TensorRT-LLM's tensors and without the loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import numpy as np

from pipelines.errors import InvalidRequestError
from pipelines.executor.executor import Executor
from pipelines.executor.limits import ExecutorLimits
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.engine.chunks import Chunk, ChunkStream
from pipelines.triton.engine.grammars import Grammars
from pipelines.triton.engine.model import Outputs
from pipelines.wire.engine_request import GenerationCall
from pipelines.wire.tensors import scalar_tensor, text_tensor


class EngineAnswerer:
    """Answers requests with one executor.

    Attributes:
        num_output_tokens: Tokens of all answers so far.

    Args:
        executor: The executor; it must run on the same step loop as ``answer``.
        grammars: Compiles guides for its engine; None to refuse them.
        lane_number: Lane of the requests.
    """

    def __init__(self, executor: Executor, grammars: Grammars | None, lane_number: int = 0) -> None:
        self.grammars = grammars
        self.num_output_tokens = 0
        self._executor = executor
        self._lane_number = lane_number
        self.vocabulary = executor.vocabulary
        self.end_ids = executor.config.end_ids

    def check(self, call: GenerationCall) -> None:
        """Refuse what the executor would refuse, and draft logits that are NaN or plus infinity."""
        self._executor.check(call.request)
        logits = call.request.draft_logits
        # Checked here and not in each round: the sampler checks the logits of our own draft.
        # Minus infinity is valid: a draft with another tokenizer returns it for tokens that it lacks.
        if logits is not None and not (logits < np.inf).all():
            raise InvalidRequestError(
                "draft_logits are not finite",
                values=f"{np.count_nonzero(~(logits < np.inf))} of {logits.size} are NaN or plus infinity",
                limit="every logit must be finite, or minus infinity for a token that the draft lacks",
                remedy="send the generation_logits of the draft as they are",
            )

    async def answer(self, call: GenerationCall) -> AsyncIterator[tuple[Outputs, bool]]:
        """Yield one response per chunk."""
        chunks = ChunkStream(self.vocabulary, call.request, streaming=call.streaming)
        async with aclosing(self._executor.generate(call.request, self._lane_number)) as outputs:
            async for output in outputs:
                self.num_output_tokens += len(output.token_ids)
                chunk = chunks.push(output)
                if chunk is not None:
                    yield response_tensors(chunk, call), chunk.is_final


def response_tensors(chunk: Chunk, call: GenerationCall) -> Outputs:
    """Return all outputs of ``target``."""
    logits = chunk.generation_logits[np.newaxis, np.newaxis]
    return {**chunk_tensors(chunk, call), "generation_logits": logits}


def chunk_tensors(chunk: Chunk, call: GenerationCall) -> Outputs:
    """Return the outputs that both models have in every response; empty if not requested.

    Those of the prompt are there only if they are requested, and empty after the first response.
    """
    log_probs = chunk.log_probs
    outputs = {
        "output_ids": chunk.token_ids.reshape(1, 1, -1),
        "sequence_length": scalar_tensor(chunk.sequence_length, np.int32),
        "text_length": scalar_tensor(chunk.text_length, np.int32),
        "finish_reason": text_tensor(chunk.finish_reason),
        "output_seed": scalar_tensor(call.request.sampling.seed, np.uint64),
        "output_log_probs": log_probs.token_log_probs.reshape(1, 1, -1),
        "cum_log_probs": scalar_tensor(chunk.cum_log_prob, np.float32),
        "top_log_prob_ids": log_probs.top_ids[np.newaxis],
        "top_log_probs": log_probs.top_log_probs[np.newaxis],
    }
    if call.request.prompt_log_probs:
        of_prompt = chunk.prompt_log_probs
        outputs["prompt_log_probs"] = of_prompt.token_log_probs.reshape(1, 1, -1)
        outputs["prompt_top_log_prob_ids"] = of_prompt.top_ids[np.newaxis]
        outputs["prompt_top_log_probs"] = of_prompt.top_log_probs[np.newaxis]
    return outputs


def executor_limits(parameters: ModelParameters, role: str) -> ExecutorLimits:
    """Read the limits of the engine of a role from a model's parameters."""
    return ExecutorLimits(
        max_batch_size=parameters.integer("max_batch_size"),
        max_num_tokens=parameters.integer("max_num_tokens"),
        max_seq_len=parameters.integer("max_seq_len"),
        max_queue_size=parameters.integer("max_queue_size"),
        num_kv_blocks=parameters.integer(f"{role}_num_kv_blocks"),
    )
