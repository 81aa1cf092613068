"""Runs draft and target as executors in this process."""

from __future__ import annotations

import asyncio
import logging
import os
from concurrent.futures import ThreadPoolExecutor

from pipelines.asyncio_thread import AsyncioThread
from pipelines.deploy.identity import processor_type
from pipelines.errors import RequestRefusedError
from pipelines.executor.block_files import BlockFiles
from pipelines.executor.executor import Executor
from pipelines.executor.limits import ExecutorLimits
from pipelines.executor.step_loop import StepLoop
from pipelines.manifest import EngineFiles
from pipelines.speculation.loop import EngineCall, EngineStream
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.engine.answering import TargetAlone
from pipelines.triton.engine.grammars import Grammars
from pipelines.wire.messages import EngineRequest

_LOG = logging.getLogger(__name__)

_NUM_CLASSES = {"draft": 1, "target": 2}
_CONTROL_CLASS = 1


class InProcessEngines:
    """Loads the engines, warms them up, and steps them on one loop; the draft, if there is one, has priority.

    The first batch class of the target is the loop's. Requests to the target alone have the second one, so
    that they read no cached block that the loop has written.

    Attributes:
        control: Answers by the target alone.
        control_class: Its batch class.
        block_files: What both keep on disk; None for nothing.

    Args:
        parameters: The model's settings.

    Raises:
        EngineLoadError: An engine cannot be loaded.
        RecipeError: The folder of the prompt cache holds other files.
    """

    def __init__(self, parameters: ModelParameters) -> None:

        def load(role: str) -> Executor:
            executor = Executor.load(
                parameters.path(f"{role}_engine_dir"),
                ExecutorLimits(
                    max_batch_size=parameters.integer("max_batch_size"),
                    max_num_tokens=parameters.integer("max_num_tokens"),
                    max_seq_len=parameters.integer("max_seq_len"),
                    max_queue_size=parameters.integer("max_queue_size"),
                    num_kv_blocks=parameters.integer(f"{role}_num_kv_blocks"),
                ),
                parameters.text(f"{role}_engine_digest"),
                parameters.path("socket").parent,
                _NUM_CLASSES[role],
            )
            print(f"start: the {role}'s engine is mapped", flush=True)
            return executor

        roles = [role for role in _NUM_CLASSES if parameters.text(f"{role}_engine_dir")]
        with ThreadPoolExecutor() as pool:
            opened = pool.submit(opened_block_files, parameters)
            self.executors = dict(zip(roles, pool.map(load, roles), strict=True))
        for role, executor in self.executors.items():  # one after the other: their steps are timed
            executor.warm_up()
            print(f"start: the {role}'s engine is warm", flush=True)
        self.block_files = opened.result()
        if self.block_files is not None:
            for role, executor in self.executors.items():
                origin = {
                    "engine": parameters.text(f"{role}_engine_digest"),
                    "processor": processor_type(),
                    "num_threads": str(min(executor.config.num_threads, len(os.sched_getaffinity(0)))),
                }
                executor.keep_blocks(self.block_files, origin)
        target = self.executors["target"]
        self.vocabulary = target.vocabulary
        self.end_ids = target.config.end_ids
        files = EngineFiles(parameters.path("target_engine_dir"), parameters.text("target_engine_digest"))
        self.grammars: Grammars | None = Grammars(files, self.vocabulary, target.config.vocab_size)
        self.control = TargetAlone(
            self.vocabulary,
            self.end_ids,
            target.check,
            lambda request: target.generate(request, _CONTROL_CLASS),
            self.grammars,
        )
        self.control_class = target.scheduler.classes[_CONTROL_CLASS]
        self.draft: EngineCall = self.executors["draft"].complete if "draft" in self.executors else _no_draft
        self.target = target.complete
        self.stream: EngineStream | None = target.generate
        self.stream_alone: EngineStream | None = target.generate
        self.loop: AsyncioThread = StepLoop(tuple(self.executors.values()))

    def start(self) -> None:
        """Start the loop."""
        self.loop.start()

    def check(self, request: GenerationRequest) -> None:
        """Refuse a request that either engine would refuse."""
        for executor in self.executors.values():
            executor.check(request)

    async def read_ahead(self, request: GenerationRequest) -> None:
        """Bring what is on disk of a request's tokens into both caches."""
        await asyncio.gather(*(executor.read_ahead(request) for executor in self.executors.values()))

    def reason_for_target_alone(self, asked: EngineRequest) -> str:
        """Return why the target answers a request alone, "" if drafts can help."""
        if "draft" in self.executors or not (asked.num_draft_tokens or asked.use_draft_logits):
            return ""
        return "the pair has no draft model, and tokens are looked up only for the length that adapts"


async def _no_draft(request: GenerationRequest) -> Output:
    raise RequestRefusedError(
        f"request {request.request_id} asks for tokens of a draft model, and the pair has none",
        "leave the draft length out, or serve a recipe with a draft",
    )


def opened_block_files(parameters: ModelParameters) -> BlockFiles | None:
    """Open the folder of the prompt cache, and say what is in it.

    Raises:
        RecipeError: It holds other files.
    """
    folder, limit = parameters.path("prompt_cache_dir"), parameters.text("prompt_cache_bytes")
    if limit == "0":
        return None
    try:
        files = BlockFiles(folder, int(limit) if limit else None)
    except OSError as error:
        _LOG.warning("there is no prompt cache, and prompts are computed after a restart again: %s", error)
        return None

    def say_contents(_: object) -> None:
        held, most = files.num_bytes / 1e9, files.limit_bytes / 1e9
        print(f"start: the prompt cache {folder} holds {held:.1f} GB of at most {most:.1f} GB", flush=True)

    files.counted.add_done_callback(say_contents)
    return files
