"""Count the tokens of prompts, and leave out those that are too long for a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.client import Client
from pipelines.command_line.chat_prompts import render_chats
from pipelines.command_line.prompts import Prompt, Prompts
from pipelines.command_line.running_server import engine_directories
from pipelines.errors import DraftproofError

if TYPE_CHECKING:
    from pipelines.text.prompt_tokenizer import PromptTokenizer


def fitting_prompts(prompts: Prompts, client: Client, num_more: int) -> Prompts:
    """Render conversations, count tokens, and leave out prompts for which a server has too few positions.

    If the target's tokenizer is not on this machine, nothing is counted, and a note says so.

    Args:
        prompts: Prompts without counts.
        client: Client of the server.
        num_more: Tokens that follow or precede each prompt.

    Raises:
        ChatTemplateError: The target's template is not on this machine, or does not render a conversation.
        EngineLoadError: The tokenizer or the template cannot be used.
    """
    folder = engine_directories(client).get("target")
    prompts = render_chats(prompts, folder)
    if folder is None or not (folder / "tokenizer.json").is_file():
        return prompts.with_note("their lengths are unknown: the target's tokenizer is not on this machine")
    counted = count_tokens(prompts, read_tokenizer(folder))
    most = max_seq_len(client)
    if most is None:
        return counted
    kept = counted.keep(lambda prompt: (prompt.num_tokens or 0) + num_more <= most)
    if num_left_out := len(counted.all) - len(kept.all):
        longest = max(prompt.num_tokens or 0 for prompt in counted.all)
        return kept.with_note(
            f"too long and left out: {num_left_out}; the longest has {longest:,} tokens, {num_more:,} more "
            f"are needed, serving.max_seq_len is {most:,}"
        )
    return counted


def read_tokenizer(engine: Path) -> PromptTokenizer:
    """Read the tokenizer with which the server of an engine encodes prompts.

    Raises:
        EngineLoadError: It is not JSON or unsupported.
    """
    from pipelines.text.prompt_tokenizer import PromptTokenizer

    path = engine / "tokenizer.json"
    return PromptTokenizer(path.read_bytes(), path)


def count_tokens(prompts: Prompts, tokenizer: PromptTokenizer) -> Prompts:
    """Return prompts with the numbers of their tokens; arguments and errors are as for ``encode_prompts``."""
    ids = encode_prompts(prompts.all, tokenizer)
    return prompts.change(lambda prompt: replace(prompt, num_tokens=len(ids[prompt.prompt_id])))


def encode_prompts(
    prompts: Sequence[Prompt], tokenizer: PromptTokenizer, most: int | None = None
) -> dict[str, tuple[int, ...]]:
    """Return the token ids of prompts by ``prompt_id``.

    Args:
        prompts: Prompts, with conversations rendered.
        tokenizer: Tokenizer of the target.
        most: Number of tokens to keep; None for all. Of a text these are the first, of a conversation the
            last, so that it still ends with the beginning of an answer.

    Raises:
        InvalidRequestError: The vocabulary cannot spell a prompt.
    """
    ids = {}
    for prompt in prompts:
        encoded = tuple(tokenizer.encode(prompt.text, **prompt.switches))
        kept = len(encoded) if most is None else min(most, len(encoded))
        ids[prompt.prompt_id] = encoded[len(encoded) - kept :] if prompt.messages else encoded[:kept]
    return ids


def max_seq_len(client: Client) -> int | None:
    """Return the most tokens of prompt and answer together; None if the server does not say."""
    try:
        return int(client.model_parameters("speculative")["max_seq_len"])
    except (DraftproofError, KeyError, ValueError):  # an older server, or none of ours
        return None
