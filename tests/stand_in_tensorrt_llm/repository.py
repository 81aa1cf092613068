"""Writes engine directories as ``trtllm-build`` does, and renders a repository for the stand-in backend."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from build.files import write_manifest
from build.recipe import Recipe, parse_recipe
from build.repository import render_recipe
from build.tensorrt_llm.command import GATHERS_LOGITS
from build.tensorrt_llm.memory_plan import EngineMemory, MemoryPlan
from tests.stand_in_tensorrt_llm.network import END_IDS, VOCAB_SIZE
from tests.support.tiny_engines import write_tokenizer

SHELL = """import triton_python_backend_utils as pb_utils
from tests.stand_in_tensorrt_llm.backend import Backend


class TritonPythonModel:
    def initialize(self, args):
        self._backend = Backend(args, pb_utils)

    def execute(self, requests):
        return self._backend.execute(requests)

    def finalize(self):
        self._backend.finalize()
"""

MAX_BATCH_SIZE = 8
MAX_QUEUE_SIZE = 8
MAX_SEQ_LEN = 512
MAX_DRAFT_LEN = 8
MEMORY = MemoryPlan(
    gpu="none",
    usable_bytes=1,
    target=EngineMemory("target", (0,), 0, 0, 1, 65536, 0.75),
    draft=EngineMemory("draft", (0,), 0, 0, 1, 65536, 0.25),
    tokens_of_a_request=MAX_SEQ_LEN + MAX_DRAFT_LEN,
)


def recipe(name: str = "stand-in", serving: dict[str, Any] | None = None, **sections: Any) -> Recipe:
    """Return a recipe for the stand-in; ``sections``: ``tensorrt_llm``, ``draft``, ``target``."""
    engine = {"checkpoint": "unused", "quantization": "fp8"}
    document = {
        "name": name,
        "runtime": "tensorrt_llm",
        "serving": {
            "max_batch_size": MAX_BATCH_SIZE,
            "max_num_tokens": 1024,
            "max_seq_len": MAX_SEQ_LEN,
            "max_queue_size": MAX_QUEUE_SIZE,
            "max_draft_len": MAX_DRAFT_LEN,
            **(serving or {}),
        },
        "tensorrt_llm": sections.get("tensorrt_llm", {}),
    }
    for role in ("draft", "target"):
        document[role] = {**engine, "tensorrt_llm": sections.get(role, {})}
    return parse_recipe(document, Path("stand-in.yaml"))


def write_engine(directory: Path, role: str, made_by: Recipe, **changes: Any) -> Path:
    """Write an engine directory: NVIDIA's ``config.json``, one rank, the tokenizer, our manifest."""
    directory.mkdir(parents=True)
    engine = made_by.target if role == "target" else made_by.draft
    serving, is_target = made_by.serving, role == "target"
    network = {
        "architecture": "LlamaForCausalLM",
        "vocab_size": VOCAB_SIZE,
        "logits_dtype": "float32",
        "mapping": {"world_size": engine.tensorrt_llm.world_size, "tp_size": engine.tensorrt_llm.tp_size},
        **changes.get("pretrained_config", {}),
    }
    build = {
        "max_batch_size": serving.max_batch_size,
        "max_num_tokens": serving.max_num_tokens,
        "max_seq_len": serving.max_seq_len + serving.max_draft_len * is_target,
        "max_draft_len": serving.max_draft_len * is_target,
        "speculative_decoding_mode": 2 if is_target else 1,
        "gather_generation_logits": GATHERS_LOGITS[role],
        **changes.get("build_config", {}),
    }
    document = {"version": "1.2.1", "pretrained_config": network, "build_config": build}
    (directory / "config.json").write_text(json.dumps(document))
    (directory / "rank0.engine").write_bytes(b"engine")
    write_tokenizer(directory / "tokenizer.json", VOCAB_SIZE)
    write_manifest(directory, {"fingerprint": role, "end_ids": changes.get("end_ids", [*END_IDS])})
    return directory


def render(run: Path, made_by: Recipe) -> Path:
    """Render the recipe's repository, replace NVIDIA's backend by the stand-in, and return the run directory.

    The file that describes how to start the server is left out, so the embedded runtime's Triton serves it.
    """
    engines = [write_engine(run / "engines" / role, role, made_by) for role in ("draft", "target")]
    repository = render_recipe(made_by, *engines, run, MEMORY)
    (repository.parent / "launch.json").unlink()
    for role in ("draft", "target"):
        stand_in(repository / role)
    return repository.parent


def stand_in(model: Path) -> None:
    """Replace the backend of a rendered model, and nothing else."""
    config = model / "config.pbtxt"
    text = config.read_text()
    assert text.count('backend: "tensorrtllm"') == 1
    config.write_text(text.replace('backend: "tensorrtllm"', 'backend: "python"'))
    (model / "1" / "model.py").write_text(SHELL)
