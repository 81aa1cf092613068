"""Names everything that decides the content of an engine, so that no engine is built twice or left stale."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from build.checkpoints.engine_texts import engine_text_digests
from build.openvino.engine import FORMAT_VERSION, openvino_version
from build.operators.library import source_digest
from build.preflight import EngineSource
from build.recipe import EngineRecipe
from pipelines.manifest import sha256_file, sha256_json
from pipelines.time_left import TimeLeft

# Sources that decide the numbers in an engine. Hashing them causes an unnecessary build now and then, but a
# version number that nobody remembers to raise would leave a stale engine in use.
_BUILD = Path(__file__).resolve().parents[1]
_COMPILER = (
    "checkpoints/checkpoint.py",
    "checkpoints/checkpoint_config.py",
    "checkpoints/stored_linear.py",
    "checkpoints/tensor_file.py",
    "hugging_face/config.py",
    "hugging_face/families.py",
    "hugging_face/layers.py",
    "hugging_face/rope.py",
    "hugging_face/settings.py",
    "hugging_face/weight_files.py",
    "hugging_face/weights.py",
    "hugging_face/quantized/awq.py",
    "hugging_face/quantized/blocks.py",
    "hugging_face/quantized/compressed_tensors.py",
    "hugging_face/quantized/form.py",
    "hugging_face/quantized/fp8.py",
    "hugging_face/quantized/gptq.py",
    "hugging_face/quantized/integers.py",
    "networks/config.py",
    "networks/growth.py",
    "networks/linear.py",
    "networks/network.py",
    "networks/rotary.py",
    "networks/source.py",
    "networks/vocabulary.py",
    "networks/weight_only.py",
    "networks/yarn.py",
    "openvino/choice.py",
    "openvino/decoder_graph.py",
    "openvino/engine.py",
    "openvino/operations.py",
    "openvino/own_attention.py",
    "openvino/own_linear.py",
    "openvino/own_operators.py",
    "openvino/paged_attention.py",
)


def checkpoint_digests(sources: Iterable[EngineSource], report: Callable[[str], None]) -> dict[Path, str]:
    """Return the SHA-256 of all files of the checkpoints; gigabytes take a while, so progress is reported.

    Args:
        sources: What the engines are made of.
        report: Called with lines of progress.
    """
    paths = {path for source in sources for path in (*source.network.files, source.tokenizer_path)}
    total = sum(path.stat().st_size for path in paths)
    progress = TimeLeft(
        total, report, lambda done: f"checkpoints: {done / 1e9:.1f} of {total / 1e9:.1f} GB read"
    )
    digests = {}
    for path in sorted(paths):
        digests[path] = sha256_file(path)
        progress.advance(path.stat().st_size)
    return digests


def engine_identity(
    role: str, engine: EngineRecipe, source: EngineSource, vocab_size: int, digests: Mapping[Path, str]
) -> dict[str, Any]:
    """Return everything that decides the content of an engine directory.

    The checkpoint counts by content, not by path. The number of KV blocks is a setting of the server.

    Args:
        role: ``draft`` or ``target``.
        engine: Section of the recipe.
        source: What the engine is made of.
        vocab_size: Tokens of the target.
        digests: SHA-256 of the checkpoints' files (``checkpoint_digests``).
    """
    assert engine.linear != "auto", "one identity would stand for two contents"
    section = dataclasses.asdict(engine)
    del section["checkpoint"], section["tensorrt_llm"]
    section["kv_cache"] = engine.kv_cache.dtype
    return {
        "role": role,
        "section": section,
        "checkpoint": {
            **{path.name: digests[path] for path in (*source.network.files, source.tokenizer_path)},
            **engine_text_digests(source.texts),
        },
        "vocab_size": vocab_size,
        # Depends on serving.max_seq_len where that decides the factors of LongRoPE.
        "max_position_embeddings": source.network.config.max_position_embeddings,
        "end_ids": list(source.end_ids),
        "format_version": FORMAT_VERSION,
        "compiler_sha256": {name: sha256_file(_BUILD / name) for name in _COMPILER},
        "openvino_version": openvino_version(),
        **(
            {"operators_sha256": source_digest()} if "draftproof" in (engine.attention, engine.linear) else {}
        ),
        **(
            {}
            if source.token_map is None
            else {"token_map": sha256_json([source.token_map.to_json(), source.token_map.equal_ids.tolist()])}
        ),
    }
