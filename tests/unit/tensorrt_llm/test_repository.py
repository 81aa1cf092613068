"""Tests that what is rendered for TensorRT-LLM exists in 1.2.1, is valid, and follows the recipe."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from build.recipe import Recipe, load_recipe
from build.repository import render_recipe
from pipelines.errors import DraftproofError
from tests.stand_in_tensorrt_llm.repository import MEMORY, recipe, write_engine
from tests.support.tensorrt_llm_1_2_1_models import INPUTS, OUTPUTS, PARAMETERS, REQUIRED_PARAMETERS

VARIANTS: dict[str, dict[str, Any]] = {
    "one-gpu": {},
    "tp2-draft-tp1": {"target": {"tp_size": 2}},
    "leader": {"tensorrt_llm": {"mode": "leader"}, "draft": {"tp_size": 4}, "target": {"tp_size": 4}},
    "leader-uneven": {"tensorrt_llm": {"mode": "leader"}, "target": {"tp_size": 2}},
    "two-nodes": {
        "tensorrt_llm": {"mode": "leader", "num_nodes": 2},
        "draft": {"tp_size": 16},
        "target": {"tp_size": 16},
    },
    "fast-logits": {
        "tensorrt_llm": {"fast_logits": True},
        "draft": {"gpu_device_ids": [0]},
        "target": {"tp_size": 2, "gpu_device_ids": [1, 2]},
    },
}


def render(tmp_path: Path, made_by: Recipe, **changes: Any) -> Path:
    engines = [
        write_engine(tmp_path / role, role, made_by, **changes.get(role, {})) for role in ("draft", "target")
    ]
    return render_recipe(made_by, *engines, tmp_path / "run", MEMORY)


def configs_of(repository: Path) -> dict[str, Any]:
    """Return each model's configuration, parsed as Triton parses it."""
    return {
        path.parent.name: text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())
        for path in repository.glob("*/config.pbtxt")
    }


@pytest.fixture(params=VARIANTS)
def rendered(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, Any]]:
    repository = render(tmp_path, recipe(request.param, **VARIANTS[request.param]))
    assert "$" not in "".join(path.read_text() for path in repository.glob("*/config.pbtxt"))
    return request.param, configs_of(repository)


def parameters(config: Any) -> dict[str, str]:
    return {name: value.string_value for name, value in config.parameters.items()}


def test_every_model_is_valid_and_its_folder_fits_its_backend(tmp_path: Path) -> None:
    repository = render(tmp_path, recipe())
    configs = configs_of(repository)
    assert set(configs) == {
        *("draft", "target", "target_alone", "speculative"),
        *("router", "ensemble", "preprocessing", "postprocessing"),
    }
    for name, config in configs.items():
        assert config.name == name
        assert config.max_batch_size == 1
        assert (repository / name / "1").is_dir()
        assert (repository / name / "1" / "model.py").is_file() == (config.backend == "python")
    assert {name for name, config in configs.items() if config.backend == "tensorrtllm"} == {
        "draft",
        "target",
    }


def test_every_tensor_and_parameter_of_nvidias_models_is_in_the_table(
    rendered: tuple[str, dict[str, Any]],
) -> None:
    _, configs = rendered
    for role in ("draft", "target"):
        config = configs[role]
        assert config.model_transaction_policy.decoupled
        assert config.dynamic_batching.default_queue_policy.max_queue_size > 0
        for tensors, table in ((config.input, INPUTS), (config.output, OUTPUTS)):
            assert [tensor.name for tensor in tensors] == list(table)
            for tensor in tensors:
                known = table[tensor.name]
                expected = {"LOGITS": "TYPE_FP32"}.get(known.data_type, known.data_type)
                assert model_config_pb2.DataType.Name(tensor.data_type) == expected, tensor.name
                assert tuple(tensor.dims) == known.dims, tensor.name
                if tensors is config.input:
                    assert tensor.optional == known.is_optional, tensor.name
        given = parameters(config)
        assert set(given) <= set(PARAMETERS)
        assert set(REQUIRED_PARAMETERS) <= set(given)
        for name, value in given.items():
            assert re.fullmatch(PARAMETERS[name].pattern, value), (name, value)


def test_modes_ranks_and_devices(rendered: tuple[str, dict[str, Any]]) -> None:
    variant, configs = rendered
    found = {
        role: (
            parameters(configs[role])["gpu_device_ids"],
            parameters(configs[role])["participant_ids"],
            parameters(configs[role])["num_nodes"],
            parameters(configs[role])["speculative_decoding_fast_logits"],
        )
        for role in ("draft", "target")
    }
    eight = ",".join(map(str, range(8)))
    expected = {
        "one-gpu": (("0", "", "1", "false"), ("0", "", "1", "false")),
        "tp2-draft-tp1": (("0", "", "1", "false"), ("0,1", "", "1", "false")),
        "leader": (("0,1,2,3", "", "1", "false"),) * 2,
        "leader-uneven": (("0", "0", "1", "false"), ("0,1", "0,1", "1", "false")),
        "two-nodes": ((eight, "", "2", "false"),) * 2,
        # Rank 0 orchestrates; without these ids such a model does not load.
        "fast-logits": (("0", "1", "1", "true"), ("1,2", "2,3", "1", "true")),
    }
    assert (found["draft"], found["target"]) == expected[variant]


@pytest.mark.parametrize(
    ("variant", "launch"),
    [
        ("one-gpu", ("orchestrator", True, 1, 1, [0])),
        ("tp2-draft-tp1", ("orchestrator", True, 1, 1, [0, 1])),
        ("leader", ("leader", False, 4, 1, [0, 1, 2, 3])),
        ("two-nodes", ("leader", False, 16, 2, list(range(8)))),
        ("fast-logits", ("orchestrator", False, 4, 1, [0, 1, 2])),
    ],
)
def test_the_launch_file_says_how_to_start_the_server(
    tmp_path: Path, variant: str, launch: tuple[object, ...]
) -> None:
    made_by = recipe(variant, **VARIANTS[variant])
    document = json.loads((render(tmp_path, made_by).parent / "launch.json").read_text())
    names = ("mode", "spawns_workers", "world_size", "num_nodes", "gpu_device_ids")
    assert tuple(document[name] for name in names) == launch
    assert document["runtime"] == "tensorrt_llm"
    assert document["container"] == made_by.tensorrt_llm.container


def tensors(config: Any, kind: str) -> dict[str, tuple[int, tuple[int, ...], bool]]:
    return {
        tensor.name: (tensor.data_type, tuple(tensor.dims), getattr(tensor, "optional", False))
        for tensor in getattr(config, kind)
    }


def test_clients_cannot_tell_the_runtimes_apart(tmp_path: Path) -> None:
    ours = configs_of(render(tmp_path, recipe()))
    engine = tmp_path / "embedded"
    write_engine(engine, "target", recipe())
    theirs = configs_of(render_recipe(load_recipe("demo"), engine, engine, tmp_path / "other"))
    for model in ("speculative", "router", "ensemble", "preprocessing", "postprocessing"):
        for kind in ("input", "output"):
            assert tensors(ours[model], kind) == tensors(theirs[model], kind), model
    for name, engine in (("stable_socket", "speculative"), ("control_socket", "target_alone")):
        assert parameters(ours["router"])[name] == parameters(ours[engine])["socket"]


def test_what_the_loop_reads_is_the_engines_own(tmp_path: Path) -> None:
    made_by = recipe(target={"tp_size": 3})
    configs = configs_of(render(tmp_path, made_by, draft={"pretrained_config": {"vocab_size": 2040}}))
    given = parameters(configs["speculative"])
    assert (given["vocab_size"], given["padded_vocab_size"]) == ("2048", "2049")
    assert (given["draft_vocab_size"], given["draft_padded_vocab_size"]) == ("2040", "2040")
    assert given["engine_access"] == "tensorrt_llm"
    assert given["end_ids"] == parameters(configs["target_alone"])["end_ids"] == "0,1"


@pytest.mark.parametrize(
    ("sections", "changes", "words"),
    [
        (
            {},
            {"target": {"build_config": {"max_num_tokens": 256}}},
            "the target engine cannot process a request of serving.max_seq_len",
        ),
        (
            {},
            {"draft": {"build_config": {"max_seq_len": 300}}},
            "the draft engine cannot process a request of serving.max_seq_len",
        ),
        (
            {},
            {"draft": {"pretrained_config": {"vocab_size": 4096}}},
            "draft's vocabulary is larger than the target's",
        ),
        (
            {"tensorrt_llm": {"fast_logits": True}},
            {"draft": {"pretrained_config": {"vocab_size": 2040}}},
            "must be equal with fast_logits",
        ),
        ({}, {"draft": {"pretrained_config": {"logits_dtype": "float16"}}}, "logits of different types"),
        ({}, {"target": {"pretrained_config": {"logits_dtype": "bfloat16"}}}, "is invalid; .*bfloat16"),
        (
            {},
            {"draft": {"build_config": {"gather_generation_logits": False}}},
            "cannot return its logits.*must be built with --gather_generation_logits",
        ),
    ],
)
def test_what_could_not_serve_is_not_rendered(
    tmp_path: Path, sections: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    made_by = recipe(**sections)
    with pytest.raises(DraftproofError, match=words) as refused:
        render(tmp_path, made_by, **changes)
    assert refused.value.remedy and refused.value.limit and refused.value.values
    assert not (tmp_path / "run").exists()


def test_half_precision_logits_reach_every_tensor_that_carries_them(tmp_path: Path) -> None:
    half = {"pretrained_config": {"logits_dtype": "float16"}}
    configs = configs_of(render(tmp_path, recipe(), draft=half, target=half))
    for role in ("draft", "target"):
        for tensor in (*configs[role].input, *configs[role].output):
            known = {**INPUTS, **OUTPUTS}[tensor.name]
            if known.data_type == "LOGITS":
                assert tensor.data_type == model_config_pb2.TYPE_FP16, tensor.name
