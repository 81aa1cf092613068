"""Tensors and parameters of TensorRT-LLM 1.2.1's ``tensorrtllm`` backend, each with its source.

Sources are files of the public repository NVIDIA/TensorRT-LLM at the named commits; 1.2.1 itself was not run.
The logits type "LOGITS" stands for TYPE_FP32 or TYPE_FP16, according to the engine's ``logits_dtype``.
"""

from __future__ import annotations

from typing import NamedTuple

CONFIG = "triton_backend/all_models/inflight_batcher_llm/tensorrt_llm/config.pbtxt @0c8de69a"
INSTANCE = "triton_backend/inflight_batcher_llm/src/model_instance_state.cc @0c8de69a"
STATE = "triton_backend/inflight_batcher_llm/src/model_state.cc @5cdd6921"


class Tensor(NamedTuple):
    """One tensor of the model's configuration."""

    data_type: str
    dims: tuple[int, ...]
    is_optional: bool
    source: str


class Parameter(NamedTuple):
    """One parameter: the form of its text (a regular expression), and the code that reads it."""

    pattern: str
    source: str


_BOOL, _NUMBER, _IDS = "true|false", r"\d+", r"(\d+(,\d+)*)?"

INPUTS = {
    "input_ids": Tensor("TYPE_INT32", (-1,), True, CONFIG),
    "input_lengths": Tensor("TYPE_INT32", (1,), False, CONFIG),
    "request_output_len": Tensor("TYPE_INT32", (1,), False, CONFIG),
    "draft_input_ids": Tensor("TYPE_INT32", (-1,), True, CONFIG),
    "draft_logits": Tensor("LOGITS", (-1, -1), True, CONFIG),
    "draft_acceptance_threshold": Tensor("TYPE_FP32", (1,), True, CONFIG),
    "end_id": Tensor("TYPE_INT32", (1,), True, CONFIG),
    "pad_id": Tensor("TYPE_INT32", (1,), True, CONFIG),
    "stop_words_list": Tensor("TYPE_INT32", (2, -1), True, CONFIG),
    "bad_words_list": Tensor("TYPE_INT32", (2, -1), True, CONFIG),
    "embedding_bias": Tensor("TYPE_FP32", (-1,), True, CONFIG),
    "beam_width": Tensor("TYPE_INT32", (1,), True, CONFIG),
    "num_return_sequences": Tensor("TYPE_INT32", (1,), True, CONFIG),
    "temperature": Tensor("TYPE_FP32", (1,), True, CONFIG),
    "runtime_top_k": Tensor("TYPE_INT32", (1,), True, CONFIG),
    "runtime_top_p": Tensor("TYPE_FP32", (1,), True, CONFIG),
    "runtime_top_p_min": Tensor("TYPE_FP32", (1,), True, CONFIG),
    "runtime_top_p_decay": Tensor("TYPE_FP32", (1,), True, CONFIG),
    "runtime_top_p_reset_ids": Tensor("TYPE_INT32", (1,), True, CONFIG),
    "len_penalty": Tensor("TYPE_FP32", (1,), True, CONFIG),
    "early_stopping": Tensor("TYPE_BOOL", (1,), True, CONFIG),
    "repetition_penalty": Tensor("TYPE_FP32", (1,), True, CONFIG),
    "presence_penalty": Tensor("TYPE_FP32", (1,), True, CONFIG),
    "frequency_penalty": Tensor("TYPE_FP32", (1,), True, CONFIG),
    "beam_search_diversity_rate": Tensor("TYPE_FP32", (1,), True, CONFIG),
    "min_tokens": Tensor("TYPE_INT32", (1,), True, CONFIG),
    "seed": Tensor("TYPE_UINT64", (1,), True, CONFIG),
    "return_log_probs": Tensor("TYPE_BOOL", (1,), True, CONFIG),
    "return_context_logits": Tensor("TYPE_BOOL", (1,), True, CONFIG),
    "return_generation_logits": Tensor("TYPE_BOOL", (1,), True, CONFIG),
    "return_perf_metrics": Tensor("TYPE_BOOL", (1,), True, CONFIG),
    "return_num_input_tokens": Tensor("TYPE_BOOL", (1,), True, CONFIG),
    "return_num_output_tokens": Tensor("TYPE_BOOL", (1,), True, CONFIG),
    "exclude_input_in_output": Tensor("TYPE_BOOL", (1,), True, CONFIG),
    "stop": Tensor("TYPE_BOOL", (1,), True, CONFIG),
    "streaming": Tensor("TYPE_BOOL", (1,), True, CONFIG),
    "encoder_input_features": Tensor("TYPE_FP16", (-1, -1), True, CONFIG),
    "encoder_output_lengths": Tensor("TYPE_INT32", (1,), True, CONFIG),
    "decoder_input_ids": Tensor("TYPE_INT32", (-1,), True, CONFIG),
    "decoder_input_lengths": Tensor("TYPE_INT32", (1,), True, CONFIG),
    "prompt_embedding_table": Tensor("TYPE_FP16", (-1, -1), True, CONFIG),
    "prompt_table_extra_ids": Tensor("TYPE_UINT64", (-1,), True, CONFIG),
    "prompt_vocab_size": Tensor("TYPE_INT32", (1,), True, CONFIG),
    "cross_attention_mask": Tensor("TYPE_BOOL", (-1, -1), True, CONFIG),
    "skip_cross_attn_blocks": Tensor("TYPE_BOOL", (1,), True, CONFIG),
    "mrope_rotary_cos_sin": Tensor("TYPE_FP32", (-1,), True, CONFIG),
    "mrope_position_deltas": Tensor("TYPE_INT64", (1,), True, CONFIG),
    "lora_task_id": Tensor("TYPE_UINT64", (1,), True, CONFIG),
    "lora_weights": Tensor("TYPE_FP16", (-1, -1), True, CONFIG),
    "lora_config": Tensor("TYPE_INT32", (-1, 3), True, CONFIG),
    "context_phase_params": Tensor("TYPE_UINT8", (-1,), True, CONFIG),
    "retention_token_range_starts": Tensor("TYPE_INT32", (-1,), True, CONFIG),
    "retention_token_range_ends": Tensor("TYPE_INT32", (-1,), True, CONFIG),
    "retention_token_range_priorities": Tensor("TYPE_INT32", (-1,), True, CONFIG),
    "retention_token_range_durations_ms": Tensor("TYPE_INT32", (-1,), True, CONFIG),
    "retention_decode_priority": Tensor("TYPE_INT32", (1,), True, CONFIG),
    "retention_decode_duration_ms": Tensor("TYPE_INT32", (1,), True, CONFIG),
    "guided_decoding_guide_type": Tensor("TYPE_STRING", (1,), True, CONFIG),
    "guided_decoding_guide": Tensor("TYPE_STRING", (1,), True, CONFIG),
    "lookahead_window_size": Tensor("TYPE_INT32", (1,), True, CONFIG),
    "lookahead_ngram_size": Tensor("TYPE_INT32", (1,), True, CONFIG),
    "lookahead_verification_set_size": Tensor("TYPE_INT32", (1,), True, CONFIG),
}

OUTPUTS = {
    "output_ids": Tensor("TYPE_INT32", (-1, -1), False, CONFIG),
    "sequence_length": Tensor("TYPE_INT32", (-1,), False, CONFIG),
    "cum_log_probs": Tensor("TYPE_FP32", (-1,), False, CONFIG),
    "output_log_probs": Tensor("TYPE_FP32", (-1, -1), False, CONFIG),
    "context_logits": Tensor("LOGITS", (-1, -1), False, CONFIG),
    "generation_logits": Tensor("LOGITS", (-1, -1, -1), False, CONFIG),
    "batch_index": Tensor("TYPE_INT32", (1,), False, CONFIG),
    "sequence_index": Tensor("TYPE_INT32", (1,), False, CONFIG),
    "context_phase_params": Tensor("TYPE_UINT8", (-1,), False, CONFIG),
    "kv_cache_alloc_new_blocks": Tensor("TYPE_INT32", (1,), False, CONFIG),
    "kv_cache_reused_blocks": Tensor("TYPE_INT32", (1,), False, CONFIG),
    "kv_cache_alloc_total_blocks": Tensor("TYPE_INT32", (1,), False, CONFIG),
    "arrival_time_ns": Tensor("TYPE_INT64", (1,), False, CONFIG),
    "first_scheduled_time_ns": Tensor("TYPE_INT64", (1,), False, CONFIG),
    "first_token_time_ns": Tensor("TYPE_INT64", (1,), False, CONFIG),
    "last_token_time_ns": Tensor("TYPE_INT64", (1,), False, CONFIG),
    "acceptance_rate": Tensor("TYPE_FP32", (1,), False, CONFIG),
    "total_accepted_draft_tokens": Tensor("TYPE_INT32", (1,), False, CONFIG),
    "total_draft_tokens": Tensor("TYPE_INT32", (1,), False, CONFIG),
    "num_input_tokens": Tensor("TYPE_INT32", (1,), False, CONFIG),
    "num_output_tokens": Tensor("TYPE_INT32", (1,), False, CONFIG),
}

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
