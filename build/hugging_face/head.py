"""Read a trained head (EAGLE-3, arXiv:2503.01840) as SpecForge, SGLang, speculators and AngelSlim publish it.

A head is one layer of a Llama whose queries, keys and values read two states: that of a token's embedding and
the projection of the target's features. They differ in the names of tensors and in ``config.json``:

- speculators (vLLM) have the settings of the layer in ``transformer_layer_config``, it is ``layers.0``, and
  ``eagle_aux_hidden_state_layer_ids`` counts what enters a layer;
- the others have the settings at the top, the layer is ``midlayer``, and the key is in ``eagle_config`` and
  counts what leaves a layer.

``d2t`` holds, for each row of the output head, the distance to the number of its token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from build.checkpoints.settings import Settings
from build.hugging_face.config import parse_network_config, read_form
from build.hugging_face.families import FAMILIES, QUERY_KEY_NORMS
from build.hugging_face.layers import LayerReader
from build.hugging_face.weights import Weights
from build.networks.network import Fusion, Network, NetworkConfig
from pipelines.errors import IncompatiblePairError

_INTEGERS = ("I64", "I32")


@dataclass(frozen=True)
class HeadSettings:
    """Settings of a head, before its target is known.

    Attributes:
        config: Its layer; the vocabulary is the target's.
        layers: As ``NetworkConfig.feature_layers``; None for what every engine takes then.
        target_hidden_size: Hidden size of its target.
        norms_residual: See ``Fusion``.
    """

    config: NetworkConfig
    layers: tuple[int, ...] | None
    target_hidden_size: int
    norms_residual: bool


def is_head(raw: Mapping[str, Any]) -> bool:
    """Return whether a ``config.json`` is that of a trained head."""
    return "eagle3" in f"{raw.get('speculators_model_type')} {raw.get('architectures')}".lower()


def parse_head(raw: Mapping[str, Any], path: Path, max_seq_len: int = 1) -> HeadSettings:
    """Parse the settings of a head.

    Args:
        raw: The parsed ``config.json``.
        path: The file, for error messages.
        max_seq_len: See ``parse_network_config``.

    Raises:
        CheckpointError: A key is missing or invalid, or needs a feature that is not implemented.
    """
    settings = Settings(raw, path)
    of_layer = settings.part("transformer_layer_config")
    layer = raw if of_layer is None else {"dtype": raw.get("dtype"), **of_layer.values}
    llama = {"model_type": "llama", "architectures": list(FAMILIES["llama"].architectures)}
    config = parse_network_config({**layer, **llama}, path, max_seq_len)
    if config.num_hidden_layers != 1:
        raise settings.fail(f"num_hidden_layers={config.num_hidden_layers}, and a head has one layer")
    key, nested = "eagle_aux_hidden_state_layer_ids", settings.part("eagle_config")
    leaving = [] if nested is None else nested.items(key, int)
    layers = settings.items(key, int) or [layer + 1 for layer in leaving]
    if any(each < 0 for each in layers):
        raise settings.fail(f"{key}={layers!r:.80} must be numbers of layers")
    config = replace(
        config,
        architecture=(settings.items("architectures", str) or ["Eagle3"])[0],
        reads_features=True,
        head_rows=settings.integer("draft_vocab_size", config.vocab_size),
    )
    return HeadSettings(
        config,
        tuple(layers) or None,
        settings.integer("target_hidden_size", config.hidden_size),
        # vLLM takes true for a head of speculators that does not say it, and false for others.
        settings.flag("norm_before_residual", default=of_layer is not None),
    )


def fitted_config(head: HeadSettings, path: Path, target: NetworkConfig) -> NetworkConfig:
    """Return the settings of a head, with the layers of its target that it reads.

    Raises:
        IncompatiblePairError: It was trained for another target.
    """
    num_layers = target.num_hidden_layers
    layers = head.layers or (2, num_layers // 2, num_layers - 3)
    sizes = head.config.hidden_size, head.target_hidden_size
    problems = {
        f"hidden_size={sizes[0]}, target_hidden_size={sizes[1]}": (
            set(sizes) != {target.hidden_size},
            f"hidden_size={target.hidden_size} of the target",
        ),
        f"vocab_size={head.config.vocab_size}": (
            head.config.vocab_size != target.vocab_size,
            f"vocab_size={target.vocab_size} of the target",
        ),
        f"features of layers {', '.join(map(str, layers))}": (
            min(layers) < 0 or max(layers) > num_layers,
            f"{num_layers} layers of the target",
        ),
    }
    for values, (is_other, limit) in problems.items():
        if is_other:
            raise IncompatiblePairError(
                f"{path}: this trained head belongs to another target: {values}, not {limit}",
                "choose a head that was trained for this target, or another draft",
            )
    return replace(head.config, feature_layers=layers, dtype=target.dtype)  # that of the embedding


class _HeadReader(LayerReader):
    """Reads the layer of a head, whose queries, keys and values read two states."""

    num_states = 2

    def __init__(self, weights: Weights, raw: Mapping[str, Any], path: Path, config: NetworkConfig) -> None:
        family = FAMILIES["llama"]
        super().__init__(weights, family, config, read_form(raw, path))
        self.prefix = "model." if weights.has_any("model.fc.") else ""
        self.of_layer = "midlayer." if weights.has_any(f"{self.prefix}midlayer.") else "layers.0."
        if weights.has_any(f"{self.prefix}{self.of_layer}self_attn.q_norm"):  # of Qwen3's layers
            self._family = replace(family, norms={**family.norms, **QUERY_KEY_NORMS})

    def layer_name(self, index: int) -> str:
        """Return what the names of the layer's tensors begin with."""
        return self.of_layer


def read_head(
    directory: Path,
    raw: Mapping[str, Any],
    settings: HeadSettings,
    config: NetworkConfig,
    target: Callable[[], Network],
) -> Callable[[], Network]:
    """Map a head's weights into memory, and check that they fit its settings.

    Args:
        directory: The checkpoint.
        raw: Its parsed ``config.json``.
        settings: What ``parse_head`` returned.
        config: What ``fitted_config`` returned.
        target: Returns the target, whose embedding, and output head, a head without its own reads.

    Raises:
        CheckpointError: A file is missing or damaged, or tensors do not fit the settings.
    """
    weights = Weights(directory)
    reader = _HeadReader(weights, raw, directory / "config.json", config)
    hidden, num_rows = config.hidden_size, config.head_rows or config.vocab_size
    table = f"{reader.prefix}embed_tokens.weight"
    embedding = weights.take(table, (config.vocab_size, hidden)) if table in weights else None
    fc = reader.linear(f"{reader.prefix}fc", hidden, len(config.feature_layers) * hidden)
    has_head = weights.has_any("lm_head.") or num_rows != config.vocab_size
    head = reader.linear("lm_head", num_rows, hidden) if has_head else lambda: target().lm_head
    rows = _logit_rows(weights, num_rows, config.vocab_size)
    hidden_norm = reader.norm(f"{reader.of_layer}hidden_norm", hidden)
    final_norm = reader.norm("norm", hidden)
    reader.check()

    def read() -> Network:
        fusion = Fusion(fc(), hidden_norm, settings.norms_residual)
        own = target().embedding if embedding is None else embedding
        return Network(config, own, final_norm, head(), reader.layer, rows, fusion)

    return read


def _logit_rows(weights: Weights, num_rows: int, vocab_size: int) -> npt.NDArray[np.int32] | None:
    """Return ``Network.logit_rows`` by ``d2t``; ``t2d`` says the same the other way round."""
    if "t2d" in weights:
        weights.take("t2d", (vocab_size,), dtypes=("BOOL",))
    if "d2t" not in weights and num_rows == vocab_size:
        return None
    tokens = np.arange(num_rows) + weights.take("d2t", (num_rows,), dtypes=_INTEGERS).data
    if not (tokens.min() >= 0 and tokens.max() < vocab_size and len(np.unique(tokens)) == num_rows):
        found = f"d2t names the tokens {tokens.min()} to {tokens.max()}"
        raise weights.fail(f"{found}, not {num_rows} different ones below {vocab_size}")
    rows = np.full(vocab_size, -1, np.int32)
    rows[tokens] = np.arange(num_rows)
    return rows
