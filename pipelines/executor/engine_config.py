"""Reads the description of an engine, ``engine.json``, which ``build/openvino/engine.py`` writes."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from pipelines.errors import EngineLoadError
from pipelines.manifest import EngineFiles

FORMAT_VERSIONS = (2, 3)  # only the latter has operators other than attention


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """The contents of ``engine.json`` needed to run the engine.

    Attributes:
        vocab_size: Columns of the logits.
        end_ids: End tokens.
        max_position_embeddings: Longest sequence for which the network was trained, in tokens.
        kv_cache_dtype: "float32", "float16" or "int8".
        attention: "openvino" or "draftproof".
        linear: "openvino" or "draftproof".
        kv_block_size: Positions in a block.
        num_threads: Threads of a step. Results are only bitwise equal with the same number of threads, so it
            belongs to the engine and not to the machine.
        weight_bytes_per_step: Minimum bytes of weights that a step reads, whatever the batch.
        compile_properties: Properties for OpenVINO.
        feature_layers: Layers whose hidden states a target returns and a trained head reads.
        reads_features: Whether this is a trained head.
        hidden_size: Features of a hidden state.
        state_bytes: Bytes of the recurrent states of a text; 0 for a network without.
        log_bytes: Bytes that a drafted token adds to them until it is accepted.
        mask_token_id: Token that stands for unknown ones when the engine, as a draft, proposes several tokens
            in one step; None for others.
    """

    role: str
    recipe: str
    openvino_version: str
    vocab_size: int
    num_layers: int
    num_kv_heads: int
    head_size: int
    max_position_embeddings: int
    end_ids: tuple[int, ...]
    kv_block_size: int
    kv_cache_dtype: str
    attention: str = "openvino"
    linear: str = "openvino"
    num_threads: int
    weight_bytes_per_step: int
    compile_properties: dict[str, str]
    feature_layers: tuple[int, ...] = ()
    reads_features: bool = False
    hidden_size: int = 0
    state_bytes: int = 0
    log_bytes: int = 0
    mask_token_id: int | None = None

    @property
    def has_one_form(self) -> bool:
        """Whether a position has the same bits as prompt and as output (docs/decisions/exact-rows.md)."""
        return self.attention == "draftproof"

    @classmethod
    def read(cls, files: EngineFiles) -> EngineConfig:
        """Read ``engine.json``.

        Raises:
            EngineLoadError: The file is missing, changed or incomplete, or has another format version.
        """
        path = files.path("engine.json")
        content = files.read(path.name)
        try:
            document = json.loads(content)
            version = document["format_version"]
            names = [field.name for field in dataclasses.fields(cls) if field.name in document]
            fields: dict[str, Any] = {name: document[name] for name in names}
            lists = (name for name in ("end_ids", "feature_layers") if name in fields)
            fields.update({name: tuple(fields[name]) for name in lists})
            config = cls(**fields)
        except (ValueError, KeyError, TypeError) as error:
            raise EngineLoadError(
                f"the engine description {path} cannot be read: {error!r}", "run 'draftproof engines'"
            ) from error
        if version not in FORMAT_VERSIONS:
            raise EngineLoadError(
                f"the engine has another format: format_version={version} in {path}, and this version reads "
                f"{FORMAT_VERSIONS[0]} and {FORMAT_VERSIONS[1]}",
                "run 'draftproof engines'",
            )
        return config
