"""The in-flight batcher: many requests, one engine, one step at a time.

It has no thread: ``step_loop`` calls ``step`` whenever there is work, on the event loop on which the
requests wait, so nothing here needs a lock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pipelines.errors import (
    DraftproofError,
    EngineFailedError,
    InvalidRequestError,
    RecipeError,
    RequestTimeoutError,
    ServerBusyError,
)
from pipelines.executor.engine import Engine, EngineConfig
from pipelines.executor.kv_cache import KvCache
from pipelines.executor.row_budget import RowBudget
from pipelines.executor.scheduler import Scheduler, Work
from pipelines.executor.sequence import Sequence
from pipelines.executor.step import DUMMY_ROW, StepInputs, pack, size_with_prompts
from pipelines.executor.verification import fit_to_budget
from pipelines.speculation.log_probs import LogProbs
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.speculation.sampler import Sampler
from pipelines.text.bad_words import BadWords, Completions
from pipelines.text.vocabulary import Vocabulary

_LOG = logging.getLogger(__name__)

MIN_STEP_TOKENS = 4
"""Smallest token budget with which a prompt can always be split into chunks of at least two."""

# Larger ones are rare, and dear to try.
_LARGEST_WARM_STEP = 64


class StepEngine(Protocol):
    """What the executor needs of an engine; ``engine.Engine`` is the real one."""

    config: EngineConfig

    def step(self, inputs: StepInputs) -> npt.NDArray[np.float32]:
        """Compute one step; float32 [n, vocab_size]."""

    def copy_block(self, source: int, destination: int) -> None:
        """Copy the keys and values of one block to another."""


@dataclass(frozen=True)
class ExecutorLimits:
    """What one executor takes on.

    Attributes:
        max_batch_size: Requests that run at once.
        max_num_tokens: Tokens computed in one step.
        max_seq_len: Tokens of one request, prompt and output together.
        max_queue_size: Requests that wait; one more is refused at once.
        num_kv_blocks: Blocks of the KV cache, the scratch block included.
    """

    max_batch_size: int
    max_num_tokens: int
    max_seq_len: int
    max_queue_size: int
    num_kv_blocks: int


class Executor:
    """Runs requests on one engine.

    Attributes:
        num_steps: Engine calls so far.
        engine_time_s: Time spent in them.
        budget: Sizes the steps; None to compute what is asked and no more.

    Args:
        engine: Computes the steps.
        vocabulary: Bytes of the tokens, for stop words.
        limits: What it takes on.

    Raises:
        RecipeError: The limits contradict each other.
    """

    def __init__(self, engine: StepEngine, vocabulary: Vocabulary, limits: ExecutorLimits) -> None:
        self.config = engine.config
        self.limits = limits
        self.vocabulary = vocabulary
        self.on_work: Callable[[], None] = lambda: None
        self.budget: RowBudget | None = None
        self.num_steps = 0
        self.engine_time_s = 0.0
        self._last_step: tuple[int, int] | None = None
        self._engine = engine
        self._cache = KvCache(limits.num_kv_blocks, engine.config.kv_block_size, engine.copy_block)
        self._scheduler = Scheduler(self._cache, limits.max_batch_size, limits.max_num_tokens)
        self._check_limits()

    @classmethod
    def load(cls, engine_dir: Path, limits: ExecutorLimits) -> Executor:
        """Load an engine from disk.

        Raises:
            EngineLoadError: See ``engine.Engine``.
        """
        vocabulary = Vocabulary.from_file(engine_dir / "tokenizer.json")
        return cls(Engine(engine_dir, limits.num_kv_blocks), vocabulary, limits)

    @property
    def num_blocks(self) -> int:
        """Blocks that requests can use."""
        return self.limits.num_kv_blocks - 1

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no request uses now."""
        return self._cache.num_free_blocks

    @property
    def num_running(self) -> int:
        """Requests that hold blocks."""
        return len(self._scheduler.running)

    @property
    def num_waiting(self) -> int:
        """Requests in the queue."""
        return len(self._scheduler.waiting)

    @property
    def has_work(self) -> bool:
        """Whether ``step`` has something to do."""
        return bool(self._scheduler.running or self._scheduler.waiting)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Output, None]:
        """Answer one request.

        Closing the iterator, or cancelling the task that reads it, gives the request's blocks back.

        Args:
            request: What is asked; see ``GenerationRequest``.

        Yields:
            New tokens after each step that gave some; the last has ``is_final``.

        Raises:
            InvalidRequestError: A parameter has no meaning, or the request is too long.
            ServerBusyError: The queue is full.
            RequestTimeoutError: The request's deadline passed.
            EngineFailedError: A step failed.
        """
        self.check(request)
        # A request that a free place waits for does not wait itself.
        if self.num_waiting + self.num_running >= self.limits.max_batch_size + self.limits.max_queue_size:
            raise ServerBusyError(
                "the queue is full",
                values=f"{self.num_waiting} requests wait, {self.num_running} run",
                limit=f"max_queue_size={self.limits.max_queue_size}, "
                f"max_batch_size={self.limits.max_batch_size}",
                remedy="send the request again later, or serve with a larger max_queue_size",
            )
        sequence = Sequence.begin(request, self.vocabulary, self._sampler(request))
        self._scheduler.waiting.append(sequence)
        self.on_work()
        try:
            while True:
                output = await sequence.outputs.get()
                if isinstance(output, DraftproofError):
                    raise output
                yield output
                if output.is_final:
                    return
        finally:
            self._end(sequence)

    async def complete(self, request: GenerationRequest) -> Output:
        """Answer one request with a single ``Output``; arguments and errors as in ``generate``."""
        outputs = [output async for output in self.generate(request)]
        if len(outputs) == 1:
            return outputs[0]
        log_probs = [output.log_probs for output in outputs if output.log_probs is not None]
        logits = [output.generation_logits for output in outputs if output.generation_logits is not None]
        return Output(
            np.concatenate([output.token_ids for output in outputs]),
            outputs[-1].finish_reason,
            is_final=True,
            log_probs=LogProbs.concatenate(log_probs) if log_probs else None,
            generation_logits=np.concatenate(logits) if logits else None,
            num_verified=outputs[-1].num_verified,
        )

    def warm_up(self) -> None:
        """Compute a step of each size that is usual: the first of a shape makes its kernels."""
        if self.budget is None:
            return
        for size in self.budget.sizes[self.budget.sizes <= _LARGEST_WARM_STEP].tolist():
            self._engine.step(pack([DUMMY_ROW], self._cache.block_size, size))

    def step(self) -> bool:
        """Compute one step and hand its tokens out. Does not raise: a failure goes to the requests it hit.

        Returns:
            Whether requests may have something to do now; False after a short step in which all of them
            went on with a proposal.
        """
        self._expire()
        self._last_step = None
        work = self._scheduler.plan()
        if not work:
            return True
        num_tokens = 0
        if self.budget is not None:
            work, num_tokens = fit_to_budget(work, self.budget)
        if not all(item.chunk.as_rows for item in work):
            num_needed = sum(len(item.chunk.token_ids) for item in work)
            num_tokens = min(size_with_prompts(num_needed), self.limits.max_num_tokens)
        inputs = pack([item.chunk for item in work], self._cache.block_size, num_tokens)
        started_s = time.perf_counter()
        try:
            logits = self._engine.step(inputs)
        except Exception:  # whatever the runtime throws: these requests fail, the others go on
            _LOG.exception("an engine step of %d requests failed", len(work))
            for item in work:
                self._fail(item.sequence, self._step_failed(item.sequence))
            return True
        seconds = time.perf_counter() - started_s
        self.engine_time_s += seconds
        self.num_steps += 1
        if all(item.chunk.as_rows for item in work):
            positions = sum(item.chunk.num_positions for item in work)
            self._last_step = (len(inputs.input_ids), positions)
        end = 0
        for item in work:
            begin, end = end, end + item.chunk.num_logits
            self._take(item, logits[begin:end])
        return self._last_step is None or any(not item.sequence.is_proposing for item in work)

    def learn_cost(self, seconds: float, *, is_first: bool) -> None:
        """Learn from the last step.

        Args:
            seconds: It took with all that followed from it until another could begin.
            is_first: Whether it was the first of several in a row, after a step of another executor.
        """
        if self.budget is None or self._last_step is None:
            return
        costs = self.budget.costs
        (costs.observe_first if is_first else costs.observe)(*self._last_step, seconds)

    def fail_all(self) -> None:
        """End every request with an error, and keep nothing of what they computed."""
        for sequence in (*self._scheduler.running, *self._scheduler.waiting):
            self._fail(sequence, self._step_failed(sequence))

    def check(self, request: GenerationRequest) -> None:
        """Refuse what this executor cannot answer, before it takes a place in the queue.

        Raises:
            InvalidRequestError: As for ``generate``.
        """
        max_seq_len = min(self.limits.max_seq_len, self.config.max_position_embeddings)
        request.validate(max_seq_len, self.config.vocab_size)
        num_draft = len(request.draft_input_ids)
        if num_draft >= self.limits.max_num_tokens:
            raise InvalidRequestError(
                "too many draft tokens",
                values=f"{num_draft} draft tokens",
                limit=f"max_num_tokens={self.limits.max_num_tokens} less 1",
                remedy="send fewer draft tokens",
            )
        ids = (request.input_ids, request.draft_input_ids)
        if any(len(part) and (part.min() < 0 or part.max() >= self.config.vocab_size) for part in ids):
            raise InvalidRequestError(
                "a token id is outside the vocabulary",
                values=f"ids from {min(part.min() for part in ids if len(part))} "
                f"to {max(part.max() for part in ids if len(part))}",
                limit=f"0 to {self.config.vocab_size - 1}",
                remedy="use the tokenizer the engine was built with",
            )

    def _check_limits(self) -> None:
        limits = self.limits
        num_blocks_needed = -(-limits.max_seq_len // self.config.kv_block_size)
        if limits.max_num_tokens < MIN_STEP_TOKENS or self.num_blocks < num_blocks_needed:
            raise RecipeError(
                "the serving limits contradict each other",
                values=f"max_num_tokens={limits.max_num_tokens}, num_kv_blocks={limits.num_kv_blocks}, "
                f"max_seq_len={limits.max_seq_len}",
                limit=f"max_num_tokens >= {MIN_STEP_TOKENS} and num_kv_blocks > {num_blocks_needed}, "
                "so that one request of full length fits",
                remedy="raise num_blocks or lower max_seq_len in the recipe",
            )

    def _sampler(self, request: GenerationRequest) -> Sampler:
        bans = None
        if request.bad_words:
            output_ids = request.input_ids[request.num_prompt_tokens :].tolist()
            bans = BadWords(request.bad_words, self._completions, output_ids)
        return Sampler(request, self.config.vocab_size, bans)

    @cached_property
    def _completions(self) -> Completions:
        return Completions(self.vocabulary)

    def _take(self, item: Work, logits: npt.NDArray[np.float32]) -> None:
        sequence, chunk = item.sequence, item.chunk
        num_fed = chunk.start + len(chunk.token_ids)
        if not chunk.num_logits:
            sequence.num_computed = num_fed
            return
        try:
            output = sequence.take_logits(logits, num_fed)
        except DraftproofError as error:  # logits or parameters leave no choice: the others go on
            self._fail(sequence, error)
            return
        if output is not None and output.is_final:
            self._end(sequence)
        else:
            assert sequence.table is not None
            self._cache.commit(
                sequence.table, sequence.known_tokens, sequence.num_computed, sequence.num_prompt
            )
        if output is not None:
            sequence.outputs.put_nowait(output)

    def _expire(self) -> None:
        now = time.monotonic()
        for sequence in (*self._scheduler.running, *self._scheduler.waiting):
            deadline_s = sequence.request.deadline_s
            if deadline_s is not None and deadline_s < now:
                self._end(sequence)
                sequence.outputs.put_nowait(
                    RequestTimeoutError(
                        "the request's deadline passed",
                        values=f"request {sequence.request.request_id}, {sequence.num_output} tokens done, "
                        f"{now - deadline_s:.3f} s late",
                        limit="the deadline sent with the request",
                        remedy="allow more time, lower max_tokens, or add capacity",
                    )
                )

    def _fail(self, sequence: Sequence, error: DraftproofError) -> None:
        if sequence.table is not None:
            self._cache.discard(sequence.table)
            sequence.table = None
        self._scheduler.remove(sequence)
        sequence.outputs.put_nowait(error)

    def _step_failed(self, sequence: Sequence) -> EngineFailedError:
        return EngineFailedError(
            "an engine step failed",
            values=f"request {sequence.request.request_id}, engine '{self.config.role}'",
            limit="the request cannot be continued",
            remedy="send it again; the server's log has the cause",
        )

    def _end(self, sequence: Sequence) -> None:
        """Give back what a request holds; does nothing the second time."""
        if sequence.table is not None:
            self._cache.release(
                sequence.table, sequence.known_tokens, sequence.num_computed, sequence.num_prompt
            )
            sequence.table = None
        self._scheduler.remove(sequence)
