"""Open a checkpoint of either form: settings and names of tensors are checked at once, weights read later."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from build.checkpoints.checkpoint import network_from_checkpoint, read_checkpoint
from build.checkpoints.settings import Settings, read_json
from build.hugging_face.config import family_of, parse_network_config, read_form
from build.hugging_face.head import fitted_config, is_head, parse_head, read_head
from build.hugging_face.layers import read_network
from build.hugging_face.mtp import has_mtp, mtp_config, read_mtp
from build.hugging_face.weights import weight_files
from build.networks.network import Network, NetworkConfig


@dataclass(frozen=True)
class NetworkSource:
    """A checkpoint whose settings are supported.

    Attributes:
        directory: Directory that it is in.
        config: Its settings.
        files: Files that decide the network: settings and weights.
        read: Returns the network; its layers are read when they are asked for.
        target: Target of a trained head, which may read its embedding; None for other networks.
    """

    directory: Path
    config: NetworkConfig
    files: tuple[Path, ...]
    read: Callable[[], Network]
    target: NetworkSource | None = None

    def with_config(self, config: NetworkConfig) -> NetworkSource:
        """Return the source of a network with other settings and the same weights."""
        return replace(self, config=config, read=lambda: replace(self.read(), config=config))


def open_settings(
    directory: Path, max_seq_len: int = 1, target: NetworkSource | None = None
) -> NetworkSource:
    """Read the settings of a checkpoint whose weights may still be elsewhere.

    Args:
        directory: The checkpoint.
        max_seq_len: Longest text that will be computed, tokens.
        target: Target of a trained head, which is checked against it.

    Raises:
        CheckpointError: A file is missing or damaged, or the network needs a feature that is not implemented.
        IncompatiblePairError: A trained head belongs to another target.
    """
    path = directory / "config.json"
    raw = read_json(path)
    if "architecture" in raw:
        return open_network(directory, max_seq_len)
    if is_head(raw):
        head = parse_head(raw, path, max_seq_len)
        config = head.config if target is None else fitted_config(head, path, target.config)
    elif target is not None and _is_mtp_of(target, directory, raw):
        config = mtp_config(target.config)
    else:
        config, target = parse_network_config(raw, path, max_seq_len), None
    opened = partial(open_network, directory, max_seq_len, target)
    return NetworkSource(directory, config, (path,), lambda: opened().read(), target)


def _is_mtp_of(target: NetworkSource, directory: Path, raw: Mapping[str, Any]) -> bool:
    """Return whether a draft is its target's own MTP module: both have the same checkpoint."""
    return target.directory.samefile(directory) and has_mtp(raw, directory / "config.json")


def open_network(directory: Path, max_seq_len: int = 1, target: NetworkSource | None = None) -> NetworkSource:
    """Read the settings of a TensorRT-LLM or Hugging Face checkpoint, and check that its tensors fit them.

    Args:
        directory: The checkpoint.
        max_seq_len: Longest text that will be computed, tokens.
        target: Target of a trained head, which cannot be read without it.

    Raises:
        CheckpointError: A file is missing or damaged, or the network needs a feature that is not implemented.
        IncompatiblePairError: A trained head belongs to another target.
    """
    path = directory / "config.json"
    raw = read_json(path)
    if "architecture" in raw:
        checkpoint = read_checkpoint(directory)
        files = path, directory / "rank0.safetensors"
        return NetworkSource(
            directory, checkpoint.config, files, partial(network_from_checkpoint, checkpoint)
        )
    if is_head(raw):
        if target is None:
            raise Settings({}, path).fail(
                "a trained head is no network without a target", "name its target first"
            )
        head = parse_head(raw, path, max_seq_len)
        config = fitted_config(head, path, target.config)
        read = read_head(directory, raw, head, config, target.read)
    elif target is not None and _is_mtp_of(target, directory, raw):
        config = mtp_config(target.config)
        read = read_mtp(directory, raw, config, target.read)
    else:
        target, config = None, parse_network_config(raw, path, max_seq_len)
        config, read = read_network(directory, family_of(raw, path), config, read_form(raw, path))
    return NetworkSource(directory, config, (path, *weight_files(directory)), read, target)
