"""Tests of the models' metrics under vLLM's names."""

from __future__ import annotations

from pytest import approx

from pipelines.front_door.observing.metrics import samples_of, under_vllms_names

PUBLISHED = """# HELP nv_inference_count Inferences
# TYPE nv_inference_count counter
nv_inference_count{model="speculative",version="1"} 7
# TYPE draftproof_kv_blocks gauge
draftproof_kv_blocks{engine="target",model="speculative"} 100
draftproof_kv_blocks{engine="draft",model="speculative"} 50
draftproof_kv_blocks_free{engine="target",model="speculative"} 75
draftproof_kv_blocks_free{engine="draft",model="speculative"} 20
draftproof_requests_running{engine="target",model="speculative"} 9
draftproof_requests_running{engine="pair",model="speculative"} 2
draftproof_requests_running{engine="control",model="speculative"} 1
draftproof_requests_waiting{engine="pair",model="speculative"} 5
draftproof_requests_waiting{engine="control",model="speculative"} 0
spec_decode_num_drafts_total{model="speculative"} 10
spec_decode_num_drafts_total{model="speculative_0123abcd"} 1
spec_decode_num_accepted_tokens_per_pos_total{model="speculative",position="0"} 4
spec_decode_num_accepted_tokens_per_pos_total{model="speculative",position="1"} 3
spec_decode_num_accepted_tokens_per_pos_total{model="speculative_0123abcd",position="0"} 1
draftproof_output_tokens_total{model="speculative",source="draft_model"} 30
draftproof_output_tokens_total{model="speculative",source="control"} 12
draftproof_prefix_cache_queries_total{engine="target",model="speculative"} 500
draftproof_prefix_cache_queries_total{engine="target",model="speculative_0123abcd"} 100
draftproof_prefix_cache_hits_total{engine="target",model="speculative"} 320
# TYPE draftproof_ttft_seconds histogram
draftproof_ttft_seconds_count{model="speculative"} 3
draftproof_ttft_seconds_sum{model="speculative"} 0.5
draftproof_ttft_seconds_bucket{model="speculative",le="0.1"} 1
draftproof_ttft_seconds_bucket{model="speculative",le="1"} 3
draftproof_ttft_seconds_bucket{model="speculative",le="+Inf"} 3
draftproof_ttft_seconds_count{model="target"} 1
draftproof_ttft_seconds_sum{model="target"} 4
draftproof_ttft_seconds_bucket{model="target",le="0.1"} 0
draftproof_ttft_seconds_bucket{model="target",le="1"} 0
draftproof_ttft_seconds_bucket{model="target",le="+Inf"} 1
"""


def figures(published: str, kv_block_size: int | None = 16) -> dict[str, float]:
    """Return each sample by its name and the labels that are not the same for all."""
    found = {}
    for metric in under_vllms_names(samples_of(published), "demo", kv_block_size):
        for sample in metric.samples:
            assert (sample.labels["model_name"], sample.labels["engine"]) == ("demo", "0")
            others = [
                f"{n}={v}" for n, v in sorted(sample.labels.items()) if n not in ("model_name", "engine")
            ]
            found[" ".join([sample.name.removeprefix("vllm:"), *others])] = sample.value
    return found


def test_figures_are_summed_over_pairs_and_the_target_alone() -> None:
    assert figures(PUBLISHED) == {
        "spec_decode_num_drafts_total": 11,
        "spec_decode_num_accepted_tokens_per_pos_total position=0": 5,
        "spec_decode_num_accepted_tokens_per_pos_total position=1": 3,
        "generation_tokens_total": 42,
        "prefix_cache_queries_total": 600,
        "prefix_cache_hits_total": 320,
        "num_requests_running": 3,
        "num_requests_waiting": 5,
        "kv_cache_usage_perc": approx(0.6),
        "cache_config_info block_size=16 num_gpu_blocks=100": 1,
        "time_to_first_token_seconds_bucket le=0.1": 1,
        "time_to_first_token_seconds_bucket le=1": 3,
        "time_to_first_token_seconds_bucket le=+Inf": 4,
        "time_to_first_token_seconds_count": 4,
        "time_to_first_token_seconds_sum": 4.5,
    }


def test_what_the_models_do_not_publish_is_left_out() -> None:
    assert figures("") == {}
    assert "cache_config_info" not in str(figures(PUBLISHED, kv_block_size=None))
