"""Loads the model ``speculative``: the draft-then-verify loop, its sockets and its metrics."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pipelines.executor.block_files import BlockFiles
from pipelines.executor.scheduler import Scheduler
from pipelines.executor.stored_blocks import StoredBlocks
from pipelines.speculation.draft_length.rule import DraftLengths
from pipelines.speculation.statistics import SpeculationStatistics
from pipelines.triton.backend.gauges import Gauges, TokenTimes
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.engine.answering import Answering, GenerationModel
from pipelines.triton.engine.in_process_engines import InProcessEngines
from pipelines.triton.engine.speculative_answerer import DraftLengthSetting, SpeculativeAnswerer
from pipelines.triton.tensorrt_llm.engines import TensorRtLlmEngines
from pipelines.triton.tensorrt_llm.server_calls import ServerCalls
from pipelines.wire.admission import Admission
from pipelines.wire.calls import CallServer


def load_speculative_model(parameters: ModelParameters, backend: Any) -> GenerationModel:
    """Load or connect to the engines, as ``engine_access`` says, and start serving.

    Args:
        parameters: The model's settings.
        backend: The module ``triton_python_backend_utils``.

    Raises:
        EngineLoadError: An engine cannot be loaded.
        InvalidRequestError: The file with the draft length is invalid.
        RepositoryError: The draft length of the recipe is invalid, or a parameter is missing.
    """
    gauges = Gauges(backend, parameters.model_name, parameters.text("served_model_name"))
    setting = DraftLengthSetting(parameters)
    max_queue_size = parameters.integer("max_queue_size")
    admission = Admission(parameters.integer("max_batch_size"), max_queue_size)
    engines: InProcessEngines | TensorRtLlmEngines
    lengths: DraftLengths | None = None
    if parameters.text("engine_access") == "tensorrt_llm":
        engines = TensorRtLlmEngines(parameters, ServerCalls())
    else:
        engines = InProcessEngines(parameters)
        draft, target = engines.executors.get("draft"), engines.executors["target"]
        assert target.times is not None
        if draft is None:
            lengths = DraftLengths(None, target.times, setting.max_draft_len)
        else:
            lengths = DraftLengths(
                draft.times,
                target.times,
                setting.max_draft_len,
                draft.count_cached,
                in_one_pass=draft.config.mask_token_id is not None,
            )
    answerer = SpeculativeAnswerer(engines, admission, setting, lengths)
    times = TokenTimes(gauges)
    services = {"": Answering(engines.loop, answerer, times)}
    sockets = {"": "socket"}
    running: list[Callable[[], int]] = [lambda: admission.num_running]
    waiting: list[Callable[[], int]] = [lambda: admission.num_waiting]
    generated: list[Callable[[], int]] = [lambda: sum(answerer.totals.tokens_by_source.values())]
    if isinstance(engines, InProcessEngines):
        engines.executors["target"].scheduler.has_open_rounds = lambda: admission.num_running > 0
        services["control"] = Answering(engines.loop, engines.control, times)
        sockets["control"] = "target_socket"
        watch_engines(gauges, engines)
        alone, control = engines.control_class, engines.control
        running.append(lambda: len(alone.running))
        waiting.append(lambda: len(alone.waiting))
        generated.append(lambda: control.num_output_tokens)
    gauges.add("vllm:num_requests_running", lambda: sum(count() for count in running))
    gauges.add("vllm:num_requests_waiting", lambda: sum(count() for count in waiting))
    gauges.add("vllm:generation_tokens_total", lambda: sum(count() for count in generated))
    gauges.add("draftproof_requests_running", lambda: admission.num_running, engine="pair")
    gauges.add("draftproof_requests_waiting", lambda: admission.num_waiting, engine="pair")
    gauges.add("draftproof_max_queue_size", lambda: max_queue_size, engine="pair")
    watch_draft(gauges, answerer, lengths)
    watch_speculation(gauges, answerer.totals)
    engines.start()
    gauges.start()
    listening = [CallServer(parameters.path(name), services[arm].take) for arm, name in sockets.items()]
    return GenerationModel(parameters, backend, services, listening, gauges.stop)


def watch_engines(gauges: Gauges, engines: InProcessEngines) -> None:
    """Publish the KV blocks and requests of both engines, and what the target takes alone."""
    for role, executor in engines.executors.items():
        _watch_requests(gauges, role, executor.scheduler)
    found = engines.executors["target"].scheduler  # the draft begins anew for each proposal
    gauges.add("vllm:prefix_cache_queries_total", lambda: found.num_looked_up)
    gauges.add("vllm:prefix_cache_hits_total", lambda: found.num_found)
    schedulers = [executor.scheduler for executor in engines.executors.values()]
    gauges.add(
        "vllm:kv_cache_usage_perc",
        lambda: max(1 - each.num_free_blocks / each.num_blocks for each in schedulers),
    )
    block_size = engines.executors["target"].config.kv_block_size
    gauges.add(
        "vllm:cache_config_info", lambda: 1, block_size=str(block_size), num_gpu_blocks=str(found.num_blocks)
    )
    stored, files = engines.executors["target"].stored_blocks, engines.block_files
    if stored is not None and files is not None:
        watch_prompt_cache(gauges, found, stored, files)
    control, batch_class = engines.control, engines.control_class
    gauges.add("draftproof_requests_running", lambda: len(batch_class.running), engine="control")
    gauges.add("draftproof_requests_waiting", lambda: len(batch_class.waiting), engine="control")
    gauges.add("draftproof_output_tokens_total", lambda: control.num_output_tokens, source="control")
    gauges.add("draftproof_control_cpu_seconds_total", lambda: round(batch_class.cpu_s, 2))


def watch_prompt_cache(gauges: Gauges, looked_up: Scheduler, stored: StoredBlocks, files: BlockFiles) -> None:
    """Publish where the target's prompts came from, and how the disk fares."""
    sources: dict[str, Callable[[], int]] = {
        "disk": lambda: stored.num_read_tokens,
        "memory": lambda: max(looked_up.num_found - stored.num_read_tokens, 0),
        "computed": lambda: looked_up.num_looked_up - looked_up.num_found,
    }
    for source, count in sources.items():
        gauges.add("draftproof_prompt_tokens_total", count, source=source)
    gauges.add("draftproof_prompt_cache_bytes", lambda: files.num_bytes)
    gauges.add("draftproof_prompt_cache_saved_seconds_total", lambda: round(stored.saved_s, 1))
    gauges.add("draftproof_prompt_cache_damaged_total", lambda: files.num_damaged)
    gauges.add("draftproof_prompt_cache_failures_total", lambda: files.num_failures)
    gauges.add("draftproof_prompt_cache_left_out_total", lambda: stored.num_left_out)


def _watch_requests(gauges: Gauges, role: str, scheduler: Scheduler) -> None:
    gauges.add("draftproof_kv_blocks", lambda: scheduler.num_blocks, engine=role)
    gauges.add("draftproof_kv_blocks_free", lambda: scheduler.num_free_blocks, engine=role)
    gauges.add("draftproof_requests_running", lambda: scheduler.num_running, engine=role)
    gauges.add("draftproof_requests_waiting", lambda: scheduler.num_waiting, engine=role)


def watch_draft(gauges: Gauges, answerer: SpeculativeAnswerer, lengths: DraftLengths | None) -> None:
    """Publish whether the draft answers, and how well it fits."""
    draft, alarm = answerer.draft, answerer.alarm
    gauges.add("draftproof_draft_available", lambda: draft.is_available)
    gauges.add("draftproof_draft_failures_total", lambda: draft.num_failures)
    gauges.add("draftproof_draft_refusals_total", lambda: draft.num_refusals)
    gauges.add("draftproof_recent_acceptance_rate", lambda: alarm.rate or 0.0)
    if lengths is not None:
        gauges.add("draftproof_expected_draft_tokens", lambda: lengths.mean_length)


def watch_speculation(gauges: Gauges, totals: SpeculationStatistics) -> None:
    """Publish the counts of speculation over all requests."""
    for source in ("grammar", "draft_model", "lookup", "target"):
        num_tokens = partial(totals.tokens_by_source.__getitem__, source)
        gauges.add("draftproof_output_tokens_total", num_tokens, source=source)
    for length in range(totals.max_draft_len + 1):
        num_rounds = partial(totals.rounds_by_length.__getitem__, length)
        gauges.add("draftproof_draft_length_total", num_rounds, num_draft_tokens=str(length))
    gauges.add("vllm:spec_decode_num_drafts_total", lambda: totals.num_drafting_rounds)
    gauges.add("vllm:spec_decode_num_draft_tokens_total", lambda: totals.total_draft_tokens)
    gauges.add("vllm:spec_decode_num_accepted_tokens_total", lambda: totals.total_accepted_draft_tokens)
    for position in range(totals.max_draft_len):
        num_accepted = partial(totals.accepted_per_position.__getitem__, position)
        gauges.add("vllm:spec_decode_num_accepted_tokens_per_pos_total", num_accepted, position=str(position))
