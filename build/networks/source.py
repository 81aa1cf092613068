"""Open a checkpoint: settings and names of tensors are checked at once, weights read later."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from build.checkpoints.settings import Settings
from build.hugging_face.config import family_of, parse_network_config, read_config, read_form
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
    path, raw = directory / "config.json", read_config(directory)
    if is_head(raw):
        head = parse_head(raw, path, max_seq_len)
        config = head.config if target is None else fitted_config(head, path, target.config)
    elif target is not None and _is_mtp_of(target, directory, raw):
        config = mtp_config(target.config)
    else:
        config, target = parse_network_config(raw, path, max_seq_len), None
    return NetworkSource(
        directory, config, (path,), lambda: open_network(directory, max_seq_len, target).read(), target
    )


def _is_mtp_of(target: NetworkSource, directory: Path, raw: Mapping[str, Any]) -> bool:
    """Return whether a draft is its target's own MTP module: both have the same checkpoint."""
    return target.directory.samefile(directory) and has_mtp(raw, directory / "config.json")


def open_network(directory: Path, max_seq_len: int = 1, target: NetworkSource | None = None) -> NetworkSource:
    """Read the settings of a checkpoint like ``open_settings``, and check that its tensors fit them.

    Raises:
        CheckpointError, IncompatiblePairError: As for ``open_settings``. A trained head cannot be read
            without its target.
    """
    path, raw = directory / "config.json", read_config(directory)
    opened = open_settings(directory, max_seq_len, target)
    config, target = opened.config, opened.target
    if is_head(raw):
        if target is None:
            raise Settings({}, path).fail(
                "a trained head is no network without a target", "name its target first"
            )
        read = read_head(directory, raw, parse_head(raw, path, max_seq_len), config, target.read)
    elif target is not None:
        read = read_mtp(directory, raw, config, target.read)
    else:
        config, read = read_network(directory, family_of(raw, path), config, read_form(raw, path))
    return replace(opened, config=config, files=(path, *weight_files(directory)), read=read)
