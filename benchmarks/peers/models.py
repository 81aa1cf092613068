"""Read the models that ``python -m benchmarks.peer_models`` wrote, and tokenize prompts for them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from benchmarks.peers.measuring import TokenizedPrompt
from benchmarks.peers.peers import Arm, Peer
from benchmarks.peers.protocol import LoadRequest
from pipelines.command_line.prompts import Prompt
from pipelines.deploy.server import run_directory
from pipelines.errors import PeerError


@dataclass(frozen=True)
class PeerModels:
    """A recipe's pair in the formats of other engines.

    Attributes:
        folder: Folder of ``models.json``.
        content: Content of ``models.json`` (``benchmarks/peer_models/__main__.py``).
    """

    folder: Path
    content: Mapping[str, Any]

    @classmethod
    def of(cls, recipe: str) -> PeerModels:
        """Read the models of a recipe.

        Raises:
            PeerError: They do not exist.
        """
        run = run_directory(recipe)
        folder = run.parent / "peers" / run.name
        try:
            return cls(folder, json.loads((folder / "models.json").read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise PeerError(
                f"the models for other engines do not exist: {error}",
                f"run python -m benchmarks.peer_models --recipe {recipe}",
            ) from None

    def has_weights_for(self, peer: Peer) -> bool:
        """Return whether the weights were written in the format that a peer reads."""
        return peer.form in self.content["target"]

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Return the tokens that end an answer."""
        return tuple(self.content["end_ids"])

    def load_request(self, peer: Peer, arm: Arm, max_concurrency: int) -> LoadRequest:
        """Return the load request for one of a peer's arms.

        Raises:
            PeerError: The weights were not written in the format that this peer reads.
        """
        if not self.has_weights_for(peer):
            raise PeerError(
                f"{peer.name} has no weights in the format that it reads, {peer.form}",
                "write them with python -m benchmarks.peer_models",
            )
        return LoadRequest(
            target=str(self.folder / self.content["target"][peer.form]),
            draft=str(self.folder / self.content["draft"][peer.form]) if arm.num_draft_tokens else None,
            num_draft_tokens=arm.num_draft_tokens or 0,
            num_threads=int(self.content["num_threads"]),
            max_concurrency=max_concurrency,
            max_seq_len=int(self.content["max_seq_len"]),
            max_num_tokens=int(self.content["max_num_tokens"]),
            end_ids=self.end_ids,
            compile_properties=self.content["compile_properties"],
        )

    def tokenized(self, prompts: Sequence[Prompt]) -> tuple[TokenizedPrompt, ...]:
        """Return prompts with their tokens."""
        folder = self.folder / self.content["target"]["openvino"]
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        return tuple(
            TokenizedPrompt(prompt.text, tuple(tokenizer.encode(prompt.text).ids)) for prompt in prompts
        )
