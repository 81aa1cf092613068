"""Runs many requests on one engine with in-flight batching.

``step_loop`` calls ``step`` while there is work, on the event loop on which the requests wait, so no locks
are needed. Requests of several batch classes share the steps and the blocks, but no queue and no cached
block.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from pipelines.errors import DraftproofError, EngineFailedError, ServerBusyError
from pipelines.executor.batch_class import BatchClass, ScheduledChunk
from pipelines.executor.block_files import BlockFiles
from pipelines.executor.contexts import Contexts, HeadContexts, RecurrentContexts
from pipelines.executor.engine import StepEngine
from pipelines.executor.grammars import looking_ahead, with_renewed_grammars
from pipelines.executor.kv_cache import BlockPool, KvCache
from pipelines.executor.limits import ExecutorLimits, check_draft_tokens, check_states, check_translated
from pipelines.executor.loading import load_engine
from pipelines.executor.recurrent_states import StateSlots
from pipelines.executor.request import (
    AnswerRequest,
    OnePassProposal,
    ProposalRequest,
    Request,
    tokens_to_read,
)
from pipelines.executor.scheduler import Scheduler
from pipelines.executor.step import WARM_UP_TOKEN, StepInputs, pack, padded_size
from pipelines.executor.stored_blocks import StoredBlocks
from pipelines.manifest import EngineFiles
from pipelines.speculation.draft_length.step_times import StepTimes
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.speculation.sampling.sampler import Sampler
from pipelines.speculation.token_ids import TokenIds
from pipelines.text.bad_words import BadWords, Completions
from pipelines.text.token_map import TOKEN_MAP_FILE, TokenMap
from pipelines.text.vocabulary import Vocabulary

_LOG = logging.getLogger(__name__)

_TIMED_SIZES = (1, 2, 4, 8, 16)
_REPETITIONS = 2
_WARM_UP_S = 3.0  # after which only the first two are timed


class Executor:
    """Runs requests on one engine.

    Attributes:
        engine: Computes the steps.
        scheduler: Decides what they compute.
        num_steps: Engine calls so far.
        stored_blocks: Blocks on disk; None without.
        times: Predicts how long steps take, and learns from them; None until ``warm_up``.

    Args:
        engine: Computes the steps.
        vocabulary: Bytes of the tokens, for stop words.
        limits: Limits of the executor.
        token_map: Translates the tokens of requests to those that the engine reads; None if they are the
            same. The logits are those of the requests' tokens.
        num_classes: 1 or 2 batch classes. Each has ``max_batch_size`` places and a queue. The second one may
            use the blocks that its requests need, but at most half of them while the first has requests.

    Raises:
        RecipeError: The limits contradict each other.
    """

    def __init__(
        self,
        engine: StepEngine,
        vocabulary: Vocabulary,
        limits: ExecutorLimits,
        token_map: TokenMap | None = None,
        num_classes: int = 1,
    ) -> None:
        limits.check(engine.config, num_classes)
        self.engine = engine
        self.config = engine.config
        self.limits = limits
        self.vocabulary = vocabulary
        self.scheduler = Scheduler(_batch_classes(engine, limits, num_classes), limits.max_num_tokens)
        self.on_work: Callable[[], None] = lambda: None
        self.stored_blocks: StoredBlocks | None = None
        self.times: StepTimes | None = None
        self.num_steps = 0
        self._token_map = token_map
        # Tokens of each of the last steps, if they had no prompts, and the number of those steps.
        self._last_decoded: tuple[int, int] | None = None

    @classmethod
    def load(
        cls,
        engine_dir: Path,
        limits: ExecutorLimits,
        digest: str | None = None,
        weights_folder: Path | None = None,
        num_classes: int = 1,
    ) -> Executor:
        """Load an engine from disk.

        Args:
            engine_dir: Directory of the engine.
            limits: Limits of the executor.
            digest: Expected digest of the engine; None to accept any.
            weights_folder: See ``engine.Engine``.
            num_classes: See the class.

        Raises:
            EngineLoadError: See ``EngineFiles`` and ``loading.load_engine``.
        """
        files = EngineFiles(engine_dir, digest)
        vocabulary = Vocabulary.parse(files.read("tokenizer.json"), files.path("tokenizer.json"))
        token_map = None
        if TOKEN_MAP_FILE in files.manifest["files"]:
            token_map = TokenMap.parse(files.read(TOKEN_MAP_FILE), files.path(TOKEN_MAP_FILE))
        num_slots = limits.num_slots(num_classes)
        engine = load_engine(files, limits.num_kv_blocks, weights_folder=weights_folder, num_slots=num_slots)
        most = engine.rules.max_num_tokens
        if most is not None and most < limits.max_num_tokens:
            _LOG.warning(
                "a step has at most %d tokens, not %d: among more, OpenVINO gives a row of this target other "
                "bits on this processor; with g++, engines that are built again read prompts faster",
                most,
                limits.max_num_tokens,
            )
            limits = replace(limits, max_num_tokens=most)
        return cls(engine, vocabulary, limits, token_map, num_classes)

    @property
    def has_work(self) -> bool:
        """Whether there are requests for ``step``."""
        return any(each.has_work for each in self.scheduler.classes)

    async def generate(self, asked: GenerationRequest, class_number: int = 0) -> AsyncGenerator[Output, None]:
        """Answer one request.

        Closing the generator or cancelling the task that reads it frees the request's blocks.

        Args:
            asked: The request.
            class_number: Batch class that it joins.

        Yields:
            New tokens after each step that produced some; the last output has ``is_final``.

        Raises:
            InvalidRequestError: A parameter is invalid, or the request is too long.
            ServerBusyError: The queue is full.
            RequestTimeoutError: The request's deadline passed.
            EngineFailedError: A step failed.
        """
        answered = with_renewed_grammars(lambda each: self._generate(each, class_number), asked)
        async with aclosing(answered) as outputs:
            async for output in outputs:
                yield output

    async def _generate(self, asked: GenerationRequest, class_number: int) -> AsyncGenerator[Output, None]:
        self.check(asked)
        if self.config.reads_features:
            check_states(asked)
        batch_class, limits = self.scheduler.classes[class_number], self.limits
        num_waiting, num_running = len(batch_class.waiting), len(batch_class.running)
        # A request that can start immediately does not count as waiting.
        if num_waiting + num_running >= limits.max_batch_size + limits.max_queue_size:
            raise ServerBusyError(
                f"the queue is full: {num_waiting} requests wait and {num_running} run, with "
                f"max_queue_size={limits.max_queue_size} and max_batch_size={limits.max_batch_size}",
                "send the request again later, or serve with a larger max_queue_size",
            )
        request = self._request(asked)
        if self._token_map is not None:
            check_translated(request, self._max_seq_len)
        batch_class.waiting.append(request)
        self.on_work()
        try:
            while True:
                output = await request.outputs.get()
                if isinstance(output, DraftproofError):
                    raise output
                yield output
                if output.is_final:
                    return
        finally:
            batch_class.end(request)

    def _request(self, asked: GenerationRequest) -> Request:
        arguments = asked, self.vocabulary, self._sampler(asked), self._token_map
        if self.config.role == "draft" and self.config.mask_token_id is not None:
            return OnePassProposal(*arguments, mask_token_id=self.config.mask_token_id)
        return AnswerRequest(*arguments) if asked.keep_drafting is None else ProposalRequest(*arguments)

    async def complete(self, asked: GenerationRequest) -> Output:
        """Answer one request with a single output; arguments and errors as in ``generate``."""
        return Output.joined([output async for output in self.generate(asked)])

    def warm_up(self) -> None:
        """Compute and time steps of a few sizes, smallest first; the first one of a size compiles kernels.

        A large network is timed with fewer sizes. What is not timed is learned while serving.
        """
        ends_s = time.monotonic() + _WARM_UP_S
        seconds: list[float] = []
        for num_tokens in _TIMED_SIZES:
            if len(seconds) > 1 and time.monotonic() > ends_s:
                break
            seconds.append(min(self._time_step(num_tokens) for _ in range(_REPETITIONS)))
        self.times = StepTimes(_TIMED_SIZES[: len(seconds)], seconds)

    def _time_step(self, num_tokens: int) -> float:
        started_s = time.perf_counter()
        self.engine.step(pack([WARM_UP_TOKEN], self.config.kv_block_size, num_tokens))
        return time.perf_counter() - started_s

    def step(self, *, may_continue: bool = False) -> bool:
        """Compute one step and distribute its tokens. Never raises: errors go to the affected requests.

        Args:
            may_continue: Whether to compute further steps at once while they only continue proposals.

        Returns:
            Whether coroutines may have something to do; False after short steps in which all requests
            continued a proposal.
        """
        self._last_decoded = None
        if self.engine.is_busy:
            # A step that was given up still writes into its blocks and slots, so nobody may take one yet.
            _LOG.error("all requests of a %s fail: a step that was given up has not ended", self.config.role)
            self.fail_all()
            return True
        step = self.scheduler.schedule()
        if not step:
            return True
        has_prompt = not all(each.chunk.is_decode for each in step)
        num_needed = sum(len(each.chunk.token_ids) for each in step)
        padded = min(padded_size(num_needed, has_prompt=has_prompt), self.limits.max_num_tokens)
        inputs = pack([each.chunk for each in step], self.config.kv_block_size, max(padded, num_needed))
        num_before = self.num_steps
        if not self._compute(step, inputs):
            return True
        while may_continue and (further := self.scheduler.continued(step)):
            token_ids = [each.chunk.token_ids[0] for each in further]
            own = self.engine.states if self.config.reads_features else None
            step, inputs = further, inputs.moved_on(token_ids, own)
            if not self._compute(step, inputs):
                return True
        if not has_prompt:
            self._last_decoded = len(inputs.input_ids), self.num_steps - num_before
        return has_prompt or not all(each.request.is_proposing for each in step)

    def _compute(self, step: Sequence[ScheduledChunk], inputs: StepInputs) -> bool:
        """Compute a step and distribute its tokens; return False if it failed, and with it its requests."""
        started_s, started_cpu_s = time.perf_counter(), time.process_time()
        try:
            with looking_ahead([each.request for each in step if each.chunk.num_logits]):
                logits = self.engine.step(inputs)
        except Exception:  # any error of the runtime: these requests fail, the others continue
            _LOG.exception("an engine step of %d requests failed", len(step))
            for each in step:
                self._fail(each.batch_class, each.request)
            return False
        self.num_steps += 1
        self.scheduler.chunk_budget.note(step, time.perf_counter() - started_s)
        share_s = (time.process_time() - started_cpu_s) / sum(len(each.chunk.token_ids) for each in step)
        logits_end = states_end = 0
        for each in step:
            batch_class, request, chunk = each.batch_class, each.request, each.chunk
            num_tokens, num_logits = len(chunk.token_ids), chunk.num_logits
            num_states = num_logits if self.config.reads_features else num_tokens
            logits_end, states_end = logits_end + num_logits, states_end + num_states
            batch_class.cpu_s += share_s * num_tokens
            try:
                if self.config.feature_layers and num_states:
                    assert self.engine.states is not None
                    states = self.engine.states[states_end - num_states : states_end]
                    batch_class.contexts.take_states(request, chunk, states)
                batch_class.take(request, chunk, logits[logits_end - num_logits : logits_end])
            except BaseException:  # a bug, or a panic of a library in Rust: the other requests continue
                _LOG.exception("request %s raised an unexpected error", request.asked.request_id)
                self._fail(batch_class, request)
        return True

    def _fail(self, batch_class: BatchClass, request: Request) -> None:
        failure = EngineFailedError(
            f"an engine step failed: request {request.asked.request_id}, engine '{self.config.role}'",
            "send the request again; the server's log has the cause",
        )
        batch_class.fail(request, failure)

    def learn_time(self, seconds: float) -> None:
        """Learn from the last call of ``step``, which took this long with the work that followed it."""
        if self.times is not None and self._last_decoded is not None:
            num_tokens, num_steps = self._last_decoded
            self.times.observe(num_tokens, seconds / num_steps)

    def fail_all(self) -> None:
        """End all requests with an error and discard what they computed."""
        for batch_class in self.scheduler.classes:
            for request in (*batch_class.running, *batch_class.waiting):
                self._fail(batch_class, request)

    def count_cached(self, token_ids: TokenIds, salt: str = "") -> int:
        """Return how many leading tokens of a prompt are cached; 0 if they are translated first."""
        if self._token_map is not None:
            return 0
        if self.config.reads_features:
            token_ids = token_ids[1:]  # see ``states``
        return self.scheduler.classes[0].cache.count_cached(token_ids, salt)

    def keep_blocks(self, files: BlockFiles, origin: Mapping[str, str]) -> None:
        """Keep the blocks of the first batch class on disk from now on.

        Args:
            files: The files.
            origin: Whatever decides the contents of blocks beside tokens and kernels.
        """
        if self.config.state_bytes:
            return  # a block is of no use without the recurrent states behind it
        cache, budget = self.scheduler.classes[0].cache, self.scheduler.chunk_budget
        self.stored_blocks = StoredBlocks(cache, self.engine, files, origin, budget.seconds)

    async def read_ahead(self, asked: GenerationRequest) -> None:
        """Bring what is on disk of a request's tokens into the cache, before the request is queued."""
        if self.stored_blocks is None or asked.prompt_log_probs:
            return
        by_head = self.config.reads_features
        token_ids, num_prompt = tokens_to_read(asked, self._token_map, by_head=by_head)
        await self.stored_blocks.read_ahead(token_ids, num_prompt, asked.cache_salt)

    def check(self, asked: GenerationRequest) -> None:
        """Refuse a request that this executor cannot answer, before it is queued.

        Raises:
            InvalidRequestError: See ``generate``.
        """
        asked.validate(self._max_seq_len, self.config.vocab_size)
        check_draft_tokens(asked, self.limits, self.config)
        if asked.bad_words:
            self._completions.of(asked.bad_words)  # computed and cached here instead of between two steps

    @property
    def _max_seq_len(self) -> int:
        # A head has no position for the first token.
        return min(self.limits.max_seq_len, self.config.max_position_embeddings) + self.config.reads_features

    def _sampler(self, asked: GenerationRequest) -> Sampler:
        bans = None
        if asked.bad_words:
            output_ids = asked.input_ids[asked.num_prompt_tokens :].tolist()
            bans = BadWords(asked.bad_words, self._completions, output_ids)
        return Sampler(asked, self.config.vocab_size, bans)

    @cached_property
    def _completions(self) -> Completions:
        return Completions(self.vocabulary)


def _batch_classes(engine: StepEngine, limits: ExecutorLimits, count: int) -> tuple[BatchClass, ...]:
    """Return batch classes that share the blocks of an engine."""
    config, pool = engine.config, BlockPool(limits.num_kv_blocks)
    slots = StateSlots(limits.num_slots(count), engine.copy_slot) if config.state_bytes else None

    def contexts() -> Contexts:
        size, one_form = config.kv_block_size, config.has_one_form
        cache = KvCache(pool, size, engine.copy_block, has_one_form=one_form)
        if slots is not None:
            return RecurrentContexts(cache, slots)
        return HeadContexts(cache) if config.reads_features else Contexts(cache)

    return tuple(BatchClass(contexts(), limits.max_batch_size) for _ in range(count))
