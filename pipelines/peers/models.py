"""The models that ``python -m build.peers`` wrote, and the prompts in their tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.deploy.server import run_directory
from pipelines.errors import PeerError
from pipelines.peers.orders import LoadOrder
from pipelines.peers.peers import Arm, Peer
from pipelines.peers.runners import TokenizedPrompt
from pipelines.prompts import CORPORA, HELD_OUT, read_prompts

PROMPT_FILES: Mapping[str, Path] = {
    "code": HELD_OUT,
    **{path.stem: path for path in CORPORA if path != HELD_OUT},
}
"""Prompt sets by name. All are plain text continued greedily, which every engine can do."""


@dataclass(frozen=True)
class PeerModels:
    """One recipe's pair in the forms that other engines read.

    Attributes:
        folder: Where ``models.json`` lies.
        content: What it says (``build/peers/__main__.py``).
    """

    folder: Path
    content: Mapping[str, Any]

    @classmethod
    def of(cls, recipe: str) -> PeerModels:
        """Those of a recipe.

        Raises:
            PeerError: They are not there.
        """
        run = run_directory(recipe)
        folder = run.parent / "peers" / run.name
        try:
            return cls(folder, json.loads((folder / "models.json").read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise PeerError(
                "the models for other engines are not there",
                values=str(error),
                limit="they are written before the comparison",
                remedy=f"run python -m build.peers --recipe {recipe}",
            ) from None

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer."""
        return tuple(self.content["end_ids"])

    def load_order(self, peer: Peer, arm: Arm, max_num_at_once: int) -> LoadOrder:
        """What a peer's program is told to load for one of its arms.

        Raises:
            PeerError: No form of the weights that this peer reads was written.
        """
        form = next((form for form in peer.forms if form in self.content["target"]), None)
        if form is None:
            raise PeerError(
                f"{peer.name} has no weights to read",
                values=f"it reads {', '.join(peer.forms)}; written: {', '.join(self.content['target'])}",
                remedy="write them with python -m build.peers",
            )
        return LoadOrder(
            target=str(self.folder / self.content["target"][form]),
            draft=str(self.folder / self.content["draft"][form]) if arm.num_draft_tokens else None,
            num_draft_tokens=arm.num_draft_tokens or 0,
            num_threads=int(self.content["num_threads"]),
            max_num_at_once=max_num_at_once,
            max_seq_len=int(self.content["max_seq_len"]),
            max_num_tokens=int(self.content["max_num_tokens"]),
            end_ids=self.end_ids,
            compile_properties=self.content["compile_properties"],
        )

    def prompts(self, name: str, count: int) -> tuple[TokenizedPrompt, ...]:
        """The first prompts of a set.

        Raises:
            InvalidRequestError: The set holds fewer.
        """
        from tokenizers import Tokenizer

        folder = self.folder / self.content["target"]["hugging_face"]
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        texts = [prompt.text for prompt in read_prompts(PROMPT_FILES[name], count)]
        return tuple(TokenizedPrompt(text, tuple(tokenizer.encode(text).ids)) for text in texts)
