"""Render chat messages of a prompt file with the chat template of the target.

As a program it checks the prompts of a recipe, which ``build`` does before engines are compiled: it reads all
of ``--prompts``, and renders conversations with the chat template in ``--target``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pipelines.command_line.general_prompts import GENERAL, chat_prompts
from pipelines.command_line.prompt_files import json_of_messages, last_content, read_prompts
from pipelines.command_line.prompts import Prompt, Prompts
from pipelines.errors import ChatTemplateError
from pipelines.program import EXIT_PASS, run_program
from pipelines.text.chat_template import ChatRenderer, ChatTemplate


def as_messages(prompts: Prompts, engine: Path) -> Prompts:
    """Return prompts as people ask a target with a chat template; of one without, as they are.

    Of the general prompts, code and dialogue have questions, and texts to continue remain texts. Texts of
    other prompts become a user's messages.

    Args:
        prompts: The prompts.
        engine: Directory of the target's engine.
    """

    def as_message(prompt: Prompt) -> Prompt:
        if prompt.messages:
            return prompt
        messages = json_of_messages([{"role": "user", "content": prompt.text}])
        return Prompt(prompt.prompt_id, "", messages=messages)

    if not ChatTemplate.is_in(engine):
        return prompts
    return chat_prompts() if prompts.source == GENERAL else prompts.change(as_message)


def render_chats(prompts: Prompts, engine: Path | None) -> Prompts:
    """Return prompts with the texts of conversations, which end with the beginning of an answer.

    Args:
        prompts: The prompts.
        engine: Directory of the target's engine; None if it is not known, such as that of another server.

    Raises:
        ChatTemplateError: There is no template for a conversation, or it does not render it.
        EngineLoadError: The file with the template is invalid.
    """
    chats = [prompt.prompt_id for prompt in prompts.all if prompt.messages]
    if not chats:
        return prompts
    if engine is None or not ChatTemplate.is_in(engine):
        place = "the target's engine is not known here" if engine is None else "the target has none"
        raise ChatTemplateError(
            f"there is no chat template for {len(chats)} conversations of {prompts.source}, such as "
            f"{chats[0]}: {place}",
            "use an instruction-tuned target, or give texts as prompt, which the model continues",
        )
    with ChatRenderer(ChatTemplate.read(engine)) as renderer:
        return prompts.change(lambda prompt: _rendered(prompt, renderer) if prompt.messages else prompt)


def last_words(prompt: Prompt) -> str:
    """Return what a person reads before the answer: the text, or the content of the last message."""
    content = last_content(prompt.messages) if prompt.messages else ""
    return f"{content}\n" if content else prompt.text


def _rendered(prompt: Prompt, renderer: ChatRenderer) -> Prompt:
    try:
        text = renderer.render(json.loads(prompt.messages), add_generation_prompt=True)
    except ChatTemplateError as error:
        raise ChatTemplateError(f"prompt {prompt.prompt_id}: {error.message}", error.remedy) from None
    return replace(prompt, text=text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check prompts; returns 0 if they can be used, else 1."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.command_line.chat_prompts")
    parser.add_argument("--prompts", type=Path, required=True, help="file or folder of prompts")
    parser.add_argument("--target", type=Path, required=True, help="folder with the target's chat.json")
    options = parser.parse_args(arguments)

    def check() -> int:
        render_chats(read_prompts(options.prompts), options.target)
        return EXIT_PASS

    return run_program(check)


if __name__ == "__main__":
    sys.exit(main())
