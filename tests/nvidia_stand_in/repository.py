"""Writes the stand-in's repository: NVIDIA's model names, tensor names, types and shapes."""

from __future__ import annotations

from pathlib import Path

_SHELL = """import triton_python_backend_utils as pb_utils
from tests.nvidia_stand_in.models import Model

class TritonPythonModel:
    def initialize(self, args):
        self._model = Model(args, pb_utils)

    def execute(self, requests):
        return self._model.execute(requests)
"""

_SAMPLING = """
temperature FP32 1 optional
repetition_penalty FP32 1 optional
presence_penalty FP32 1 optional
frequency_penalty FP32 1 optional
seed UINT64 1 optional
beam_width INT32 1 optional
min_tokens INT32 1 optional
end_id INT32 1 optional
pad_id INT32 1 optional
return_log_probs BOOL 1 optional
return_context_logits BOOL 1 optional
return_generation_logits BOOL 1 optional
return_perf_metrics BOOL 1 optional
exclude_input_in_output BOOL 1 optional
"""
_TEXT_INPUTS = f"""
text_input STRING 1
max_tokens INT32 1
stream BOOL 1 optional
top_k INT32 1 optional
top_p FP32 1 optional
bad_words STRING -1 optional
stop_words STRING -1 optional
{_SAMPLING}"""
_ENGINE_INPUTS = f"""
input_ids INT32 -1
input_lengths INT32 1
request_output_len INT32 1
draft_input_ids INT32 -1 optional
stop_words_list INT32 2,-1 optional
bad_words_list INT32 2,-1 optional
runtime_top_k INT32 1 optional
runtime_top_p FP32 1 optional
stop BOOL 1 optional
streaming BOOL 1 optional
{_SAMPLING}"""
_ENGINE_OUTPUTS = """
output_ids INT32 -1,-1
sequence_length INT32 -1
generation_logits FP32 -1,-1,-1
total_draft_tokens INT32 1
"""
_MODELS = {
    "preprocessing": (
        "QUERY STRING 1\nREQUEST_OUTPUT_LEN INT32 1",
        "INPUT_ID INT32 -1\nREQUEST_INPUT_LEN INT32 1\nREQUEST_OUTPUT_LEN INT32 1\nOUT_END_ID INT32 1",
    ),
    "postprocessing": ("TOKENS_BATCH INT32 -1,-1\nSEQUENCE_LENGTH INT32 -1", "OUTPUT STRING -1"),
    "tensorrt_llm": (_ENGINE_INPUTS, _ENGINE_OUTPUTS),
    "tensorrt_llm_draft": (_ENGINE_INPUTS, _ENGINE_OUTPUTS),
    "tensorrt_llm_bls": (
        f"num_draft_tokens INT32 1 optional\nuse_draft_logits BOOL 1 optional\n{_TEXT_INPUTS}",
        "text_output STRING -1\ntotal_draft_tokens INT32 1",
    ),
}
_STEPS = (
    ("preprocessing", {"QUERY": "text_input", "REQUEST_OUTPUT_LEN": "max_tokens"},
     {"INPUT_ID": "_ids", "REQUEST_INPUT_LEN": "_length", "REQUEST_OUTPUT_LEN": "_output_len"}),
    ("tensorrt_llm",
     {"input_ids": "_ids", "input_lengths": "_length", "request_output_len": "_output_len",
      "runtime_top_k": "top_k", "streaming": "stream", "return_perf_metrics": "return_perf_metrics"},
     {"output_ids": "_output_ids", "sequence_length": "_sequence_length"}),
    ("postprocessing", {"TOKENS_BATCH": "_output_ids", "SEQUENCE_LENGTH": "_sequence_length"},
     {"OUTPUT": "text_output"}),
)  # fmt: skip
_BATCHING = "dynamic_batching { max_queue_delay_microseconds: 1000 }"
_INSTANCES = {"tensorrt_llm_bls": 3}


def write_repository(directory: Path, *, fault: str = "", bls_is_decoupled: bool = False) -> None:
    """Write ``directory/model_repository``, as ``Server.start`` expects it."""
    for name, (inputs, outputs) in _MODELS.items():
        config = [
            f'name: "{name}"\nbackend: "python"\nmax_batch_size: 8',
            *_tensors("input", inputs),
            *_tensors("output", outputs),
            f"instance_group [{{ kind: KIND_CPU count: {_INSTANCES.get(name, 1)} }}]",
        ]
        if name == "tensorrt_llm_bls":
            config.append(f'parameters {{ key: "fault" value: {{ string_value: "{fault}" }} }}')
            config.append(f"model_transaction_policy {{ decoupled: {str(bls_is_decoupled).lower()} }}")
        elif name == "tensorrt_llm":
            config.append(_BATCHING)
        _write(directory, name, config)
        (directory / "model_repository" / name / "1" / "model.py").write_text(_SHELL)
    steps = [_step(*step) for step in _STEPS]
    _write(
        directory,
        "ensemble",
        [
            'name: "ensemble"\nplatform: "ensemble"\nmax_batch_size: 8',
            *_tensors("input", "text_input STRING 1\nmax_tokens INT32 1\nstream BOOL 1 optional\n"
                      "top_k INT32 1 optional\nreturn_perf_metrics BOOL 1 optional"),
            *_tensors("output", "text_output STRING -1"),
            f"ensemble_scheduling {{ step [ {', '.join(steps)} ] }}",
        ],
    )  # fmt: skip


def _write(directory: Path, name: str, config: list[str]) -> None:
    version = directory / "model_repository" / name / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text("\n".join(config) + "\n")


def _tensors(kind: str, lines: str) -> list[str]:
    written = []
    for line in filter(None, lines.splitlines()):
        name, datatype, dims, *optional = line.split()
        suffix = " optional: true" if optional else ""
        written.append(f'{kind} [{{ name: "{name}" data_type: TYPE_{datatype} dims: [{dims}]{suffix} }}]')
    return written


def _step(model: str, inputs: dict[str, str], outputs: dict[str, str]) -> str:
    maps = [f'input_map {{ key: "{key}" value: "{value}" }}' for key, value in inputs.items()]
    maps += [f'output_map {{ key: "{key}" value: "{value}" }}' for key, value in outputs.items()]
    return f'{{ model_name: "{model}" model_version: -1 {" ".join(maps)} }}'
