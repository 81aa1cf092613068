"""Runs many requests on one engine with in-flight batching.

``step_loop`` calls ``step`` while there is work, on the event loop on which the requests wait, so no locks
are needed. Requests of several lanes share the steps and the blocks, but no queue and no cached block.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from pipelines.errors import DraftproofError
from pipelines.executor.engine import Engine, StepEngine
from pipelines.executor.grammars import GrammarTurns, looking_ahead, with_renewed_grammars
from pipelines.executor.kv_cache import BlockPool, KvCache
from pipelines.executor.lane import Lane, Work, divide_blocks, plan_step
from pipelines.executor.limits import (
    ExecutorLimits,
    check_draft_tokens,
    check_states,
    check_translated,
    queue_is_full,
    step_failed,
)
from pipelines.executor.prompt_pace import PromptPace, is_short
from pipelines.executor.recurrent_states import StateSlots
from pipelines.executor.rows import next_rows
from pipelines.executor.sequence import Sequence
from pipelines.executor.step import WARM_UP_ROW, StepInputs, pack, size_of_rows, size_with_prompts
from pipelines.manifest import EngineFiles
from pipelines.speculation.draft_length.step_times import StepTimes
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.speculation.sampling.sampler import Sampler
from pipelines.speculation.token_ids import TokenIds
from pipelines.text.bad_words import BadWords, Completions
from pipelines.text.token_map import TOKEN_MAP_FILE, TokenMap
from pipelines.text.vocabulary import Vocabulary

_LOG = logging.getLogger(__name__)

_TIMED_ROWS = (1, 2, 4, 8, 16)
_REPETITIONS = 2
_WARM_UP_S = 3.0  # after which only the first two are timed


class Executor:
    """Runs requests on one engine.

    Attributes:
        engine: Computes the steps.
        num_steps: Engine calls so far.
        engine_time_s: Time spent in engine calls.
        times: Predicts how long steps take, and learns from them; None until ``warm_up``.
        has_open_rounds: Whether requests of the first lane continue, although none of them may be here now.
        pace: Limits the prompts in a step.
        lanes: Queues and running requests.
        counts: Counts them.

    Args:
        engine: Computes the steps.
        vocabulary: Bytes of the tokens, for stop words.
        limits: Limits of the executor.
        token_map: Translates the tokens of requests to those that the engine reads; None if they are the
            same. The logits are those of the requests' tokens.
        num_lanes: 1 or 2. Each lane has ``max_batch_size`` places and a queue. The second one may use the
            blocks that its requests need, but at most half of them while the first has requests.

    Raises:
        RecipeError: The limits contradict each other.
    """

    def __init__(
        self,
        engine: StepEngine,
        vocabulary: Vocabulary,
        limits: ExecutorLimits,
        token_map: TokenMap | None = None,
        num_lanes: int = 1,
    ) -> None:
        self.config = engine.config
        self.limits = limits
        self.vocabulary = vocabulary
        self.on_work: Callable[[], None] = lambda: None
        self.has_open_rounds: Callable[[], bool] = lambda: False
        self.times: StepTimes | None = None
        self.pace = PromptPace()
        self._turns = GrammarTurns()
        self.num_steps = 0
        self._num_plans = 0
        self.engine_time_s = 0.0
        # Rows of the last steps, if they had no prompts, and the number of those steps.
        self._last_rows: tuple[int, int] | None = None
        self.engine = engine
        self._token_map = token_map
        limits.check(engine.config, num_lanes)
        self._pool = BlockPool(limits.num_kv_blocks)
        sizes = engine.config.kv_block_size, engine.copy_block
        caches = (
            KvCache(self._pool, *sizes, has_one_form=engine.config.has_one_form) for _ in range(num_lanes)
        )
        num_slots = limits.num_slots(num_lanes)
        states = StateSlots(num_slots, engine.copy_slot) if engine.config.state_bytes else None
        self.lanes = tuple(Lane(cache, limits.max_batch_size, states) for cache in caches)
        self.counts = Counts(self._pool, self.lanes)

    @classmethod
    def load(
        cls,
        engine_dir: Path,
        limits: ExecutorLimits,
        digest: str | None = None,
        weights_folder: Path | None = None,
        num_lanes: int = 1,
    ) -> Executor:
        """Load an engine from disk.

        Args:
            engine_dir: Directory of the engine.
            limits: Limits of the executor.
            digest: Expected digest of the engine; None to accept any.
            weights_folder: See ``engine.Engine``.
            num_lanes: See the class.

        Raises:
            EngineLoadError: See ``EngineFiles`` and ``engine.Engine``.
        """
        files = EngineFiles(engine_dir, digest)
        vocabulary = Vocabulary.parse(files.read("tokenizer.json"), files.path("tokenizer.json"))
        token_map = None
        if TOKEN_MAP_FILE in files.manifest["files"]:
            token_map = TokenMap.parse(files.read(TOKEN_MAP_FILE), files.path(TOKEN_MAP_FILE))
        num_slots = limits.num_slots(num_lanes)
        engine = Engine(files, limits.num_kv_blocks, weights_folder=weights_folder, num_slots=num_slots)
        if engine.max_num_tokens is not None and engine.max_num_tokens < limits.max_num_tokens:
            _LOG.warning(
                "a step has at most %d tokens, not %d: among more, OpenVINO gives a row of this target other "
                "bits on this processor; with g++, engines that are built again read prompts faster",
                engine.max_num_tokens,
                limits.max_num_tokens,
            )
            limits = replace(limits, max_num_tokens=engine.max_num_tokens)
        return cls(engine, vocabulary, limits, token_map, num_lanes)

    @property
    def has_work(self) -> bool:
        """Whether there are requests for ``step``."""
        return any(lane.has_work for lane in self.lanes)

    async def generate(
        self, request: GenerationRequest, lane_number: int = 0
    ) -> AsyncGenerator[Output, None]:
        """Answer one request.

        Closing the generator or cancelling the task that reads it frees the request's blocks.

        Args:
            request: The request.
            lane_number: Lane that it joins.

        Yields:
            New tokens after each step that produced some; the last output has ``is_final``.

        Raises:
            InvalidRequestError: A parameter is invalid, or the request is too long.
            ServerBusyError: The queue is full.
            RequestTimeoutError: The request's deadline passed.
            EngineFailedError: A step failed.
        """
        answered = with_renewed_grammars(lambda each: self._generate(each, lane_number), request)
        async with aclosing(answered) as outputs:
            async for output in outputs:
                yield output

    async def _generate(self, request: GenerationRequest, lane_number: int) -> AsyncGenerator[Output, None]:
        self.check(request)
        if self.config.reads_features:
            check_states(request)
        lane = self.lanes[lane_number]
        num_waiting, num_running = len(lane.waiting), len(lane.running)
        # A request that can start immediately does not count as waiting.
        if num_waiting + num_running >= self.limits.max_batch_size + self.limits.max_queue_size:
            raise queue_is_full(num_waiting, num_running, self.limits)
        sequence = Sequence(request, self.vocabulary, self._sampler(request), self._token_map)
        if self._token_map is not None:
            check_translated(sequence, self._max_seq_len)
        lane.waiting.append(sequence)
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
            lane.end(sequence)

    async def complete(self, request: GenerationRequest) -> Output:
        """Answer one request with a single output; arguments and errors as in ``generate``."""
        return Output.joined([output async for output in self.generate(request)])

    def warm_up(self) -> None:
        """Compute and time steps of a few sizes, smallest first; the first one of a size compiles kernels.

        A large network is timed with fewer sizes. What is not timed is learned while serving.
        """
        ends_s = time.monotonic() + _WARM_UP_S
        seconds: list[float] = []
        for rows in _TIMED_ROWS:
            if len(seconds) > 1 and time.monotonic() > ends_s:
                break
            seconds.append(min(self._time_step(rows) for _ in range(_REPETITIONS)))
        self.times = StepTimes(_TIMED_ROWS[: len(seconds)], seconds)

    def _time_step(self, rows: int) -> float:
        started_s = time.perf_counter()
        self.engine.step(pack([WARM_UP_ROW], self.config.kv_block_size, rows))
        return time.perf_counter() - started_s

    def step(self, *, may_continue: bool = False) -> bool:
        """Compute one step and distribute its tokens. Never raises: errors go to the affected requests.

        Args:
            may_continue: Whether to compute further steps at once while they only continue proposals.

        Returns:
            Whether coroutines may have something to do; False after short steps in which all requests
            continued a proposal.
        """
        self._last_rows = None
        if self.engine.is_busy:
            # A step that was given up still writes into its blocks and slots, so nobody may take one yet.
            _LOG.error("all requests of a %s fail: a step that was given up has not ended", self.config.role)
            self.fail_all()
            return True
        work = self._plan()
        if not work:
            return True
        is_rows_only = all(item.chunk.as_rows for item in work)
        num_needed = sum(len(item.chunk.token_ids) for item in work)
        padded = (size_of_rows if is_rows_only else size_with_prompts)(num_needed)
        num_tokens = max(min(padded, self.limits.max_num_tokens), num_needed)
        inputs = pack([item.chunk for item in work], self.config.kv_block_size, num_tokens)
        num_before = self.num_steps
        if not self._compute(work, inputs):
            return True
        while may_continue and (further := self._next_rows(work)):
            token_ids = [item.chunk.token_ids[0] for item in further]
            own = self.engine.states if self.config.reads_features else None
            work, inputs = further, inputs.moved_on(token_ids, own)
            if not self._compute(work, inputs):
                return True
        if is_rows_only:
            self._last_rows = len(inputs.input_ids), self.num_steps - num_before
        return not is_rows_only or any(not item.sequence.is_proposing for item in work)

    def _plan(self) -> list[Work]:
        """Plan the next step; empty only if there is no request."""
        self._num_plans += 1
        if len(self.lanes) > 1:
            divide_blocks(*self.lanes, is_first_open=self.has_open_rounds())
        lanes = self.lanes[::-1] if self._num_plans % 2 else self.lanes  # their rows take turns
        return self.pace.fit(self._turns.fit(plan_step(lanes, self.limits.max_num_tokens)))

    def _next_rows(self, work: list[Work]) -> list[Work] | None:
        """Return the step after a computed one if it needs no plan."""
        is_whole = len(work) == self.counts.num_running
        return next_rows(work, self.config.kv_block_size) if is_whole else None

    def _compute(self, work: list[Work], inputs: StepInputs) -> bool:
        """Compute a planned step and distribute its tokens; False if it failed, and with it its requests."""
        started_s, started_cpu_s = time.perf_counter(), time.process_time()
        try:
            with looking_ahead([item.sequence for item in work if item.chunk.num_logits]):
                logits = self.engine.step(inputs)
        except Exception:  # any error of the runtime: these requests fail, the others continue
            _LOG.exception("an engine step of %d requests failed", len(work))
            for item in work:
                self._fail(item.lane, item.sequence)
            return False
        seconds = time.perf_counter() - started_s
        self.engine_time_s += seconds
        self.num_steps += 1
        self.pace.note(work, seconds)
        share_s = (time.process_time() - started_cpu_s) / sum(len(item.chunk.token_ids) for item in work)
        logits_end = states_end = 0
        for item in work:
            num_tokens, num_logits = len(item.chunk.token_ids), item.chunk.num_logits
            num_states = num_logits if self.config.reads_features else num_tokens
            logits_end, states_end = logits_end + num_logits, states_end + num_states
            item.lane.cpu_s += share_s * num_tokens
            try:
                if self.config.feature_layers and num_states:
                    assert self.engine.states is not None
                    states = self.engine.states[states_end - num_states : states_end]
                    item.sequence.take_states(item.chunk, states)
                item.lane.take(item, logits[logits_end - num_logits : logits_end])
            except BaseException:  # a bug, or a panic of a library in Rust: the other requests continue
                _LOG.exception("request %s raised an unexpected error", item.sequence.request.request_id)
                self._fail(item.lane, item.sequence)
        return True

    def _fail(self, lane: Lane, sequence: Sequence) -> None:
        lane.fail(sequence, step_failed(sequence, self.config.role))

    def learn_time(self, seconds: float) -> None:
        """Learn from the last call of ``step``, which took this long with the work that followed it."""
        if self.times is not None and self._last_rows is not None:
            num_rows, num_steps = self._last_rows
            self.times.observe(num_rows, seconds / num_steps)

    def fail_all(self) -> None:
        """End all requests with an error and discard what they computed."""
        for lane in self.lanes:
            for sequence in (*lane.running, *lane.waiting):
                self._fail(lane, sequence)

    def count_cached(self, token_ids: TokenIds) -> int:
        """Return how many leading tokens of a prompt are cached; 0 if they are translated first."""
        if self.config.reads_features:
            token_ids = token_ids[1:]  # see ``states``
        return 0 if self._token_map is not None else self.lanes[0].cache.count_cached(token_ids)

    def check(self, request: GenerationRequest) -> None:
        """Refuse a request that this executor cannot answer, before it is queued.

        Raises:
            InvalidRequestError: See ``generate``.
        """
        request.validate(self._max_seq_len, self.config.vocab_size)
        check_draft_tokens(request, self.limits, self.config, are_translated=self._token_map is not None)
        if request.bad_words:
            self._completions.of(request.bad_words)  # computed and cached here instead of between two steps

    @property
    def _max_seq_len(self) -> int:
        # A head has no position for the first token.
        return min(self.limits.max_seq_len, self.config.max_position_embeddings) + self.config.reads_features

    def _sampler(self, request: GenerationRequest) -> Sampler:
        bans = None
        if request.bad_words:
            output_ids = request.input_ids[request.num_prompt_tokens :].tolist()
            bans = BadWords(request.bad_words, self._completions, output_ids)
        return Sampler(request, self.config.vocab_size, bans)

    @cached_property
    def _completions(self) -> Completions:
        return Completions(self.vocabulary)


class Counts:
    """Counts the requests and blocks of an executor, for the loop that steps it and for metrics.

    Args:
        pool: Its blocks.
        lanes: Its lanes.
    """

    def __init__(self, pool: BlockPool, lanes: tuple[Lane, ...]) -> None:
        self._lanes = lanes
        self.num_blocks = pool.num_blocks

    @property
    def num_free_blocks(self) -> int:
        """Number of blocks that no request uses."""
        return self.num_blocks - sum(lane.cache.num_used for lane in self._lanes)

    @property
    def num_running(self) -> int:
        """Number of requests that hold blocks."""
        return sum(len(lane.running) for lane in self._lanes)

    @property
    def num_waiting(self) -> int:
        """Number of requests in the queues."""
        return sum(len(lane.waiting) for lane in self._lanes)

    @property
    def num_looked_up(self) -> int:
        """Number of tokens of prompts that were looked up in the cache."""
        return sum(lane.num_looked_up for lane in self._lanes)

    @property
    def num_found(self) -> int:
        """Number of those tokens that were in it."""
        return sum(lane.num_found for lane in self._lanes)

    @property
    def num_reading(self) -> int:
        """Number of running requests that are far from the end of their prompts."""
        return sum(
            sequence.reads_prompt and not is_short(sequence)
            for lane in self._lanes
            for sequence in lane.running
        )

    @property
    def num_answering(self) -> int:
        """Number of requests whose answer or proposal is being written."""
        return sum(lane.num_answering for lane in self._lanes)
