"""Lists what the production track writes, which file of upstream reads it, and how that was checked.

A test compares the paths and commits with those of the tables in tests/support.
"""

from __future__ import annotations

from typing import NamedTuple

RUN = "run"
READ = "read"
UNKNOWN = "unknown"

_TRTLLM = "NVIDIA/TensorRT-LLM"
_BACKEND = "triton-inference-server/tensorrtllm_backend"


class Emitted(NamedTuple):
    """One thing that we write.

    Attributes:
        what: The thing.
        writer: Our file that writes it.
        repository: Repository of upstream that has the reader.
        readers: Its files, each with the commit that was read; empty if none could be had.
        checked: ``RUN``, ``READ`` or ``UNKNOWN``.
        how: What was done, and what was not.
        test: Our file that repeats it; empty if none does.
    """

    what: str
    writer: str
    repository: str
    readers: tuple[str, ...]
    checked: str
    how: str
    test: str = ""


EMITTED = (
    Emitted(
        "Every `config.pbtxt`: fields, data types, shapes, tensor maps, parameters as text",
        "build/rendering/templates.py",
        "triton-inference-server/server",
        ("release 24.10 (Triton 2.51)",),
        RUN,
        "Triton itself loads every model of every recipe and is asked what it read. A Python-based backend "
        "named `tensorrtllm` stands for NVIDIA's. Triton 26.04 was not run.",
        "tests/integration/test_triton_config.py",
    ),
    Emitted(
        "Tensors of the models `draft` and `target`",
        "model_repository/target/config.tensorrt_llm.pbtxt",
        _TRTLLM,
        ("triton_backend/all_models/inflight_batcher_llm/tensorrt_llm/config.pbtxt @0c8de69a",),
        READ,
        "Names, types, shapes and which are optional are compared with a table.",
        "tests/unit/tensorrt_llm/test_repository.py",
    ),
    Emitted(
        "Parameters of the models `draft` and `target`",
        "build/rendering/tensorrt_llm_repository.py",
        _TRTLLM,
        (
            "triton_backend/inflight_batcher_llm/src/model_instance_state.cc @0c8de69a",
            "triton_backend/inflight_batcher_llm/src/model_state.cc @5cdd6921",
        ),
        READ,
        "Names and the form of each value are compared with a table.",
        "tests/unit/tensorrt_llm/test_repository.py",
    ),
    Emitted(
        "Checkpoints: `config.json`, tensors, scales",
        "build/quantization/exported_config.py",
        "NVIDIA/Model-Optimizer",
        ("nvidia-modelopt 0.47.0",),
        RUN,
        "ModelOpt writes them in the tests; they are multiplied out against the source.",
        "tests/unit/build/test_quantize.py",
    ),
    Emitted(
        "`config.json` of a checkpoint, as `trtllm-build` reads it",
        "build/quantization/exported_config.py",
        _TRTLLM,
        ("tensorrt_llm/models/modeling_utils.py @01ea6d79",),
        READ,
        "Keys of `QuantConfig`, which refuses others, and required keys of `PretrainedConfig` are compared "
        "with the exports of ModelOpt. What each model's own class requires is read for Llama and Qwen2.",
        "tests/unit/build/test_quantize.py",
    ),
    Emitted(
        "Command line of `trtllm-build`",
        "build/tensorrt_llm/command.py",
        _TRTLLM,
        (
            "tensorrt_llm/commands/build.py @65f1d153",
            "tensorrt_llm/plugin/plugin.py @c20322ff",
            "tensorrt_llm/logger.py @027cd518",
        ),
        READ,
        "Every flag and value is compared with a table, from which the stand-in builds its parser. Once, the "
        "declarations of upstream's parser, copied by hand, took the command lines of all recipes.",
        "tests/unit/tensorrt_llm/test_engine.py",
    ),
    Emitted(
        "Engines: `config.json` that `trtllm-build` writes and we read",
        "build/rendering/tensorrt_llm_repository.py",
        _TRTLLM,
        ("tensorrt_llm/models/modeling_utils.py @01ea6d79",),
        UNKNOWN,
        "`pretrained_config` is `PretrainedConfig.to_dict`, by reading. No engine of 1.2.1 was seen.",
    ),
    Emitted(
        "Command line of `tritonserver`, environment and MPI ranks",
        "pipelines/deploy/triton/nvidia_triton.py",
        _TRTLLM,
        ("triton_backend/scripts/launch_triton_server.py @0a2e2c1f",),
        READ,
        "Triton 2.51 takes its options in the embedded runtime. MPI and the backend's variables: not run.",
        "tests/unit/deploy/test_gpu_server.py",
    ),
    Emitted(
        "`trtllm-serve.yaml` and `model.yaml`: arguments of `LLM()` in 1.3",
        "build/llm_api.py",
        _TRTLLM,
        ("tensorrt_llm/llmapi/llm_args.py @00043967",),
        READ,
        "Keys, types and ranges are compared with a table. Once, pydantic also read all recipes with the "
        "fields and validators of `DraftTargetDecodingConfig` and `KvCacheConfig`, copied by hand.",
        "tests/unit/build/test_llm_api.py",
    ),
    Emitted(
        "`decoding_type: DraftTarget` in 1.0 to 1.2",
        "build/llm_api.py",
        _TRTLLM,
        (),
        READ,
        "Stored versions of `llmapi/llm_args.py` from 2025 look it up in `DecodingBaseConfig.from_dict`; "
        "their commits are not known, and which release candidate of 1.3 changed it is not either.",
        "tests/unit/build/test_llm_api.py",
    ),
    Emitted(
        "`triton.sh`: LLM_CONFIG_PATH, `triton_config`, options of `tritonserver`",
        "build/llm_api.py",
        _TRTLLM,
        ("triton_backend/all_models/llmapi/tensorrt_llm/1/model.py @044a90d2",),
        RUN,
        "Triton 2.51 runs the script with a model that has the same interface. NVIDIA's own was read, not "
        "run.",
        "tests/integration/test_llm_api.py",
    ),
    Emitted(
        "`/app/all_models/llmapi`: where NVIDIA's image has that model",
        "build/llm_api.py",
        _BACKEND,
        ("dockerfile/Dockerfile.triton.trt_llm_backend @ce68ff5f",),
        READ,
        "The image was not pulled.",
    ),
    Emitted(
        "`trtllm-serve.sh`: options of `trtllm-serve`",
        "build/llm_api.py",
        _TRTLLM,
        (
            "tensorrt_llm/commands/serve.py @00209af1",
            "tests/unittest/api_stability/references/trtllm_serve_cli.yaml @029e223d",
        ),
        READ,
        "Compared with a list of three options, which both generations have.",
        "tests/unit/build/test_llm_api.py",
    ),
    Emitted(
        "Kubernetes and Compose files of `make deployment`",
        "build/deployment.py",
        "kubernetes/kubernetes",
        ("schemas in kubernetes-validate",),
        RUN,
        "Checked against the schemas; LeaderWorkerSet by reading lws v0.9.0. Applied to no cluster.",
        "tests/unit/build/test_deployment.py",
    ),
)
"""Everything that leaves us for a program of NVIDIA's or of Triton's, in the order of the work."""

_WORDS = {
    RUN: "upstream's program, in our tests",
    READ: "by reading",
    UNKNOWN: "unknown",
}


def upstream() -> str:
    """Return one row for each thing that we write for upstream's programs."""
    lines = ["| What we write | Who reads it | Checked | How |", "|---|---|---|---|"]
    for row in EMITTED:
        readers = "<br>".join(_reader(reader) for reader in row.readers)
        reader = f"{row.repository}: {readers}" if readers else row.repository
        test = f" `{row.test}`" if row.test else ""
        lines.append(f"| {row.what} (`{row.writer}`) | {reader} | {_WORDS[row.checked]} | {row.how}{test} |")
    return "\n".join(lines)


def _reader(reader: str) -> str:
    path, at, commit = reader.partition(" @")
    return f"`{path}` @{commit}" if at else reader
