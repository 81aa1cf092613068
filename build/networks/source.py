"""Open a checkpoint of either form: settings and names of tensors are checked at once, weights read later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from build.checkpoints.checkpoint import network_from_checkpoint, read_checkpoint
from build.checkpoints.settings import read_json
from build.hugging_face.config import family_of, parse_network_config, read_form
from build.hugging_face.layers import read_network
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
    """

    directory: Path
    config: NetworkConfig
    files: tuple[Path, ...]
    read: Callable[[], Network]


def open_settings(directory: Path, max_seq_len: int = 1) -> NetworkSource:
    """Read the settings of a checkpoint whose weights may still be elsewhere.

    Args:
        directory: The checkpoint.
        max_seq_len: Longest text that will be computed, tokens.

    Raises:
        CheckpointError: A file is missing or damaged, or the network needs a feature that is not implemented.
    """
    path = directory / "config.json"
    raw = read_json(path)
    if "architecture" in raw:
        return open_network(directory, max_seq_len)
    config = parse_network_config(raw, path, max_seq_len)
    return NetworkSource(directory, config, (path,), lambda: open_network(directory, max_seq_len).read())


def open_network(directory: Path, max_seq_len: int = 1) -> NetworkSource:
    """Read the settings of a TensorRT-LLM or Hugging Face checkpoint, and check that its tensors fit them.

    Args:
        directory: The checkpoint.
        max_seq_len: Longest text that will be computed, tokens.

    Raises:
        CheckpointError: A file is missing or damaged, or the network needs a feature that is not implemented.
    """
    path = directory / "config.json"
    raw = read_json(path)
    if "architecture" in raw:
        checkpoint = read_checkpoint(directory)
        return NetworkSource(
            directory,
            checkpoint.config,
            (path, directory / "rank0.safetensors"),
            lambda: network_from_checkpoint(checkpoint),
        )
    config = parse_network_config(raw, path, max_seq_len)
    config, read = read_network(directory, family_of(raw, path), config, read_form(raw, path))
    return NetworkSource(directory, config, (path, *weight_files(directory)), read)
