"""Tests that what is rendered for TensorRT-LLM exists in 1.2.1, is valid, and follows the recipe."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from build.recipe import Recipe, load_recipe
from build.repository import render_recipe
from tests.stand_in_tensorrt_llm.repository import MEMORY, recipe, write_engine
from tests.support.tensorrt_llm_1_2_1_models import PARAMETERS, REQUIRED_PARAMETERS, TENSORS_SHA256

VARIANTS: dict[str, dict[str, Any]] = {
    "one-gpu": {},
    "tp2-draft-tp1": {"target": {"tp_size": 2}},
    "own-gpus": {"draft": {"gpu_device_ids": [0]}, "target": {"tp_size": 2, "gpu_device_ids": [1, 2]}},
}
GPUS = {
    "one-gpu": {"draft": [0], "target": [0]},
    "tp2-draft-tp1": {"draft": [0], "target": [0, 1]},
    "own-gpus": {"draft": [0], "target": [1, 2]},
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


def parameters(config: Any) -> dict[str, str]:
    return {name: value.string_value for name, value in config.parameters.items()}


def test_every_model_is_valid_and_its_folder_fits_its_backend(tmp_path: Path) -> None:
    repository = render(tmp_path, recipe())
    configs = configs_of(repository)
    assert set(configs) == {
        *("draft", "target", "target_alone", "speculative"),
        *("router", "ensemble", "ensemble_steps", "preprocessing", "postprocessing"),
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


@pytest.mark.parametrize("variant", VARIANTS)
def test_nvidias_models_have_the_tensors_parameters_and_gpus_of_1_2_1(variant: str, tmp_path: Path) -> None:
    made_by = recipe(variant, **VARIANTS[variant])
    repository = render(tmp_path, made_by)
    assert "$" not in "".join(path.read_text() for path in repository.glob("*/config.pbtxt"))
    for role, config in configs_of(repository).items():
        if role not in ("draft", "target"):
            continue
        assert config.model_transaction_policy.decoupled
        assert config.dynamic_batching.default_queue_policy.max_queue_size > 0
        lines = [
            f"{tensor.name} {model_config_pb2.DataType.Name(tensor.data_type)} {list(tensor.dims)} "
            f"{getattr(tensor, 'optional', False)}"
            for tensor in (*config.input, *config.output)
        ]
        digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        assert digest == TENSORS_SHA256, "other tensors than in NVIDIA's file:\n" + "\n".join(lines)
        given = parameters(config)
        assert set(REQUIRED_PARAMETERS) <= set(given) <= set(PARAMETERS)
        for name, value in given.items():
            assert re.fullmatch(PARAMETERS[name].pattern, value), (name, value)
        assert given["gpu_device_ids"] == ",".join(map(str, GPUS[variant][role]))
        # The backend finds the ranks that it spawns; other settings are for ranks that MPI starts.
        assert (given["participant_ids"], given["num_nodes"]) == ("", "1")
    launch = json.loads((repository.parent / "launch.json").read_text())
    assert launch["runtime"] == "tensorrt_llm"
    assert launch["container"] == made_by.tensorrt_llm.container
    assert launch["gpu_device_ids"] == sorted({gpu for gpus in GPUS[variant].values() for gpu in gpus})


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
