"""Read the MTP module of a Qwen3.5 checkpoint, a layer that drafts from the target's last hidden state.

It reads the normed embedding of a token beside the normed state of the position before, and has the target's
embedding and output head. The state is that behind the target's final norm, and for drafted tokens behind the
module's own. Source: vLLM, ``models/qwen3_5_mtp.py`` and ``v1/spec_decode``; transformers leaves it out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from build.checkpoints.settings import Settings
from build.hugging_face.config import family_of, read_form
from build.hugging_face.layers import LayerReader
from build.hugging_face.weights import Weights
from build.networks.network import Fusion, Network, NetworkConfig

_OTHER_PARTS = ("model", "language_model", "lm_head", "visual")


def has_mtp(raw: Mapping[str, Any], path: Path) -> bool:
    """Return whether a ``config.json`` says that the checkpoint has an MTP module.

    Args:
        raw: The parsed JSON.
        path: The file, for error messages.

    Raises:
        CheckpointError: The module has several layers.
    """
    settings = Settings(raw, path)
    settings = settings.part("text_config") or settings
    settings.refuse_unless("mtp_num_hidden_layers", 0, 1)
    return bool(settings.get("mtp_num_hidden_layers"))


def is_mtp(config: NetworkConfig) -> bool:
    """Return whether this is an MTP module: a head with all rows of its target's output head."""
    return config.reads_features and config.head_rows is None


def mtp_config(target: NetworkConfig) -> NetworkConfig:
    """Return the settings of the module, by those of its target."""
    layer = next(layer for layer in target.layers if not layer.is_recurrent)
    return replace(
        target,
        layers=(layer,),
        recurrence=None,
        feature_layers=(target.num_hidden_layers,),
        reads_features=True,
    )


class _MtpReader(LayerReader):
    def __init__(self, weights: Weights, raw: Mapping[str, Any], path: Path, config: NetworkConfig) -> None:
        family = replace(family_of(raw, path), other_parts=_OTHER_PARTS)
        super().__init__(weights, family, config, read_form(raw, path))
        self.prefix = "mtp."


def read_mtp(
    directory: Path, raw: Mapping[str, Any], config: NetworkConfig, target: Callable[[], Network]
) -> Callable[[], Network]:
    """Map the module's weights into memory, and check that they fit its settings.

    Args:
        directory: The target's checkpoint.
        raw: Its parsed ``config.json``.
        config: What ``mtp_config`` returned.
        target: Returns the target.

    Raises:
        CheckpointError: A tensor is missing, does not fit the settings, or is not used.
    """
    reader = _MtpReader(Weights(directory), raw, directory / "config.json", config)
    hidden = config.hidden_size
    fc = reader.linear("mtp.fc", hidden, 2 * hidden)
    embedding_norm, hidden_norm, final_norm = (
        reader.norm(name, hidden) for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    )
    reader.check()

    def read() -> Network:
        its = target()
        fusion = Fusion(fc(), hidden_norm, embedding_norm=embedding_norm, features_norm=its.final_norm)
        return Network(config, its.embedding, final_norm, its.lm_head, reader.layer, fusion=fusion)

    return read
