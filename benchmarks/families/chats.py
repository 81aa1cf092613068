"""Compare a family's chat template with transformers, and answer a chat with its engine.

The templates were written here after the published ones (``chat_templates``). The tokenizer has one token for
each byte and for each special name of the templates, because no published tokenizer is at hand.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from benchmarks.families.chat_templates import (
    CONVERSATIONS,
    ENDS,
    SPECIAL_TOKENS,
    TEMPLATES,
    system,
    user,
)
from benchmarks.families.engines import greedy_tokens
from pipelines.errors import ChatTemplateError
from pipelines.executor.engine import Engine
from pipelines.text.chat_template import ChatRenderer, ChatTemplate
from pipelines.text.prompt_tokenizer import PromptTokenizer
from pipelines.text.special_names import MARK

TEMPLATE_OF = {
    "llama": "llama_3",
    "mistral": "mistral",
    "qwen2": "chatml",
    "qwen3": "chatml",
    "smollm3": "chatml",
    "phi3": "phi",
    "gemma2": "gemma_2",
    "gemma3_text": "gemma",
    "granite": "granite",
    "olmo2": "olmo_2",
}
"""``model_type`` -> name of the template whose style the family's instruction-tuned models have."""

NUM_ANSWER = 16

_NAME = re.compile(r"<\|\w+\|>|<(?:start|end)_of_turn>|\[/?INST\]")
# Longer than the original contexts of our networks: below them, transformers scales LongRoPE otherwise.
_REQUEST = [system(), user("What is a draft model good for? " * 3)]
_REFUSES_SYSTEM = ("gemma_2",)


@dataclass(frozen=True)
class Chat:
    """A family's chat template beside transformers.

    Attributes:
        template: Its name in ``TEMPLATES``.
        num_rendered: Conversations that were rendered, with every ending.
        num_equal: Those with the same text as transformers, or refused by both.
        num_answer_equal: Tokens of the greedy answer to a chat that are equal to transformers' answer, from
            the first on, of ``NUM_ANSWER``; 0 if the prompts differ.
    """

    template: str
    num_rendered: int
    num_equal: int
    num_answer_equal: int

    @property
    def is_exact(self) -> bool:
        """Return whether all is as in transformers."""
        return self.num_equal == self.num_rendered and self.num_answer_equal == NUM_ANSWER


def compare_chat(model_type: str, engine: Engine, model: Any) -> Chat | None:
    """Compare a family's template, and an answer, with transformers; None without a template.

    Args:
        model_type: As in ``config.json``.
        engine: The family's float32 engine.
        model: The same network in transformers.
    """
    import transformers

    if model_type not in TEMPLATE_OF:
        return None
    name = TEMPLATE_OF[model_type]
    source = TEMPLATES[name]
    names = [*SPECIAL_TOKENS.values(), *sorted(set(_NAME.findall(source)))]
    tokenizer = byte_tokenizer(names)
    reference = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, chat_template=source, **SPECIAL_TOKENS
    )
    template = ChatTemplate({"default": source}, SPECIAL_TOKENS, tuple(names))
    request = _REQUEST[1:] if name in _REFUSES_SYSTEM else _REQUEST
    with ChatRenderer(template) as renderer:
        pairs = [
            (_ours(renderer, messages, end), _theirs(reference, messages, end))
            for messages in CONVERSATIONS.values()
            for end in ENDS
        ]
        text = renderer.render(request, add_generation_prompt=True)
    prompts = PromptTokenizer(tokenizer.to_str().encode(), Path("tokenizer.json"))
    ids = np.array(prompts.encode(text, add_special_tokens=False, parse_special_tokens=True), np.int32)
    expected = reference.apply_chat_template(request, add_generation_prompt=True, return_dict=False)
    is_same_prompt = ids.tolist() == expected
    return Chat(
        template=name,
        num_rendered=len(pairs),
        num_equal=sum(ours == theirs for ours, theirs in pairs),
        num_answer_equal=num_equal(
            greedy_tokens(engine, ids, NUM_ANSWER), transformers_tokens(model, expected, NUM_ANSWER)
        )
        if is_same_prompt
        else 0,
    )


def byte_tokenizer(names: list[str]) -> Any:
    """Return a tokenizer with a token for each special name, and for each byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    return tokenizer


def transformers_tokens(model: Any, prompt: list[int], count: int) -> list[int]:
    """Decode greedily without a cache, so that no shortcut of transformers is the reference."""
    import torch

    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            logits = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
            tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :]


def num_equal(first: list[int], second: list[int]) -> int:
    """Return how many tokens are equal, from the first on."""
    pairs = enumerate(zip(first, second, strict=True))
    return next((index for index, (one, other) in pairs if one != other), len(first))


def _ours(renderer: ChatRenderer, messages: Any, end: Any) -> str | None:
    try:
        return renderer.render(messages, **end).replace(MARK, "")
    except ChatTemplateError:
        return None


def _theirs(reference: Any, messages: Any, end: Any) -> str | None:
    try:
        return str(reference.apply_chat_template(messages, tokenize=False, **end))
    except Exception:  # jinja2 and transformers raise many kinds
        return None
