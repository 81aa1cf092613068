"""Parameters of TensorRT-LLM 1.2.1's ``tensorrtllm`` backend, each with its source, and all its tensors.

Sources are files of the public repository NVIDIA/TensorRT-LLM at the named commits; 1.2.1 itself was not run.
"""

from __future__ import annotations

from typing import NamedTuple

CONFIG = "triton_backend/all_models/inflight_batcher_llm/tensorrt_llm/config.pbtxt @0c8de69a"
INSTANCE = "triton_backend/inflight_batcher_llm/src/model_instance_state.cc @0c8de69a"
STATE = "triton_backend/inflight_batcher_llm/src/model_state.cc @5cdd6921"


class Parameter(NamedTuple):
    """One parameter: the form of its text (a regular expression), and the code that reads it."""

    pattern: str
    source: str


_BOOL, _NUMBER, _IDS = "true|false", r"\d+", r"(\d+(,\d+)*)?"

TENSORS_SHA256 = "5d16986e756bc3705578369721a6670b27555af51f36a2fbea8309246745a507"
"""SHA-256 over the name, type, dims and optionality of each input and output of CONFIG, in order."""

PARAMETERS = {
    "gpt_model_path": Parameter("/.+", f"{INSTANCE} ModelInstanceState"),
    "gpt_model_type": Parameter("inflight_fused_batching", f"{INSTANCE} getBatchingTypeFromParams"),
    "max_beam_width": Parameter("1", f"{INSTANCE} getExecutorConfigFromParams"),
    "batch_scheduler_policy": Parameter(
        "guaranteed_no_evict|max_utilization", f"{INSTANCE} getSchedulerConfigFromParams"
    ),
    "kv_cache_free_gpu_mem_fraction": Parameter(r"0\.\d+", f"{INSTANCE} getKvCacheConfigFromParams"),
    "max_tokens_in_paged_kv_cache": Parameter(r"\d+", f"{INSTANCE} getKvCacheConfigFromParams"),
    "enable_kv_cache_reuse": Parameter("true", f"{INSTANCE} getKvCacheConfigFromParams"),
    "enable_chunked_context": Parameter("false", f"{INSTANCE} getExecutorConfigFromParams"),
    "exclude_input_in_output": Parameter("false", f"{INSTANCE} ModelInstanceState"),
    "normalize_log_probs": Parameter("false", f"{INSTANCE} getExecutorConfigFromParams"),
    "gpu_device_ids": Parameter(_IDS, f"{STATE} LoadParameters; utils::csvStrToVecInt"),
    "participant_ids": Parameter(_IDS, f"{STATE} LoadParameters; utils::csvStrToVecInt"),
    "num_nodes": Parameter(_NUMBER, f"{INSTANCE} getParallelConfigFromParams"),
    "executor_worker_path": Parameter("/opt/tritonserver/.+", f"{STATE} GetExecutorWorkerPath"),
    "speculative_decoding_fast_logits": Parameter(
        _BOOL, f"{INSTANCE} getSpeculativeDecodingConfigFromParams"
    ),
    "cancellation_check_period_ms": Parameter(_NUMBER, f"{INSTANCE} ModelInstanceState"),
    "stats_check_period_ms": Parameter(_NUMBER, f"{INSTANCE} ModelInstanceState"),
    "recv_poll_period_ms": Parameter(_NUMBER, f"{INSTANCE} getExecutorConfigFromParams"),
    "tokenizer_dir": Parameter("", f"{INSTANCE} getGuidedDecodingConfigFromParams"),
    "guided_decoding_backend": Parameter("", f"{INSTANCE} getGuidedDecodingConfigFromParams"),
    "xgrammar_tokenizer_info_path": Parameter("", f"{INSTANCE} getGuidedDecodingConfigFromParams"),
}

REQUIRED_PARAMETERS = (
    *("gpt_model_path", "gpt_model_type"),
    # Read without a default: the model does not load without them.
    *("tokenizer_dir", "guided_decoding_backend", "xgrammar_tokenizer_info_path"),
)
