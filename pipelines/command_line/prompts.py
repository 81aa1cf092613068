"""Holds the prompts that a program uses."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from pipelines.errors import InvalidRequestError


class TokenSwitches(TypedDict):
    """Says how a text becomes tokens; see ``PromptTokenizer.encode`` and ``CompletionRequest``."""

    add_special_tokens: bool
    parse_special_tokens: bool


@dataclass(frozen=True)
class Prompt:
    """One text to continue, or one conversation to answer.

    Attributes:
        prompt_id: Name in reports.
        text: Text that the model continues; of a conversation, "" until ``render_chats`` has rendered it.
        num_tokens: Tokens of the text; None until a tokenizer has counted them.
        messages: Messages of the conversation as JSON; "" for a text.
    """

    prompt_id: str
    text: str
    num_tokens: int | None = None
    messages: str = ""

    @property
    def switches(self) -> TokenSwitches:
        """Return what requests and tokenizers must be given with the text.

        The template of a conversation writes special tokens, BOS among them
        (docs/decisions/sampling.md).
        """
        assert self.text, f"the conversation {self.prompt_id} is not rendered"
        is_chat = bool(self.messages)
        return {"add_special_tokens": not is_chat, "parse_special_tokens": is_chat}

    @property
    def sha256(self) -> bytes:
        """Hash of the text, or of the messages, whatever template renders them."""
        return hashlib.sha256((self.messages or self.text).encode()).digest()


@dataclass(frozen=True)
class Prompts:
    """Prompts in one or more sets.

    Attributes:
        source: Where they come from: a path, or the name of the built-in set.
        sets: Prompts by the name of their set, the largest set first; no set is empty.
        notes: Sentences on prompts that were left out.
    """

    source: str
    sets: Mapping[str, tuple[Prompt, ...]]
    notes: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[Prompt, ...]:
        """Prompts alternately from all sets, until the shorter ones end."""
        turns = itertools.zip_longest(*self.sets.values())
        return tuple(prompt for turn in turns for prompt in turn if prompt is not None)

    @property
    def sha256(self) -> str:
        """Hash of the texts and messages, in order."""
        digest = hashlib.sha256()
        for prompt in self.all:
            digest.update(prompt.sha256)
        return digest.hexdigest()

    @property
    def num_tokens(self) -> int | None:
        """Tokens of all prompts; None if they were not counted."""
        counts = [prompt.num_tokens for prompt in self.all]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    def keep(self, is_kept: Callable[[Prompt], bool]) -> Prompts:
        """Return the prompts for which a function is true."""
        sets = {name: tuple(filter(is_kept, prompts)) for name, prompts in self.sets.items()}
        return replace(self, sets={name: prompts for name, prompts in sets.items() if prompts})

    def change(self, changed: Callable[[Prompt], Prompt]) -> Prompts:
        """Return the prompts as a function changes each of them."""
        return replace(self, sets={name: tuple(map(changed, of_set)) for name, of_set in self.sets.items()})

    def with_note(self, note: str) -> Prompts:
        """Return the prompts with one more note."""
        return replace(self, notes=(*self.notes, note))

    def draw(self, most: int, least: int = 1) -> Prompts:
        """Return the first prompts, alternately from all sets.

        Args:
            most: Number of prompts, if there are as many.
            least: Fewer prompts are an error.

        Raises:
            InvalidRequestError: There are fewer than ``least``.
        """
        drawn = self.all[:most]
        if len(drawn) < least:
            seen = "; ".join((f"{self.source} has {len(drawn)}", *self.notes))
            raise InvalidRequestError(
                f"there are too few prompts, {least} are needed: {seen}",
                "add prompts (in *.txt one a line, or separated by lines ---), or request fewer",
            )
        chosen = {prompt.prompt_id for prompt in drawn}
        return self.keep(lambda prompt: prompt.prompt_id in chosen)

    def document(self) -> dict[str, Any]:
        """Return what a report says about the prompts, ready for JSON."""
        return {
            "source": self.source,
            "sha256": self.sha256,
            "num_prompts": len(self.all),
            "num_tokens": self.num_tokens,
            "sets": {name: len(prompts) for name, prompts in self.sets.items()},
            "notes": list(self.notes),
        }

    def lines(self) -> list[str]:
        """Return the same for a terminal."""
        sets = ", ".join(f"{name} {len(prompts)}" for name, prompts in self.sets.items())
        tokens = "tokens unknown" if self.num_tokens is None else f"{self.num_tokens:,} tokens"
        summary = f"{len(self.all)} of {self.source} ({sets}), {tokens}, SHA-256 {self.sha256[:12]}"
        return [f"prompts: {summary}", *(f"prompts: {note}" for note in self.notes)]
