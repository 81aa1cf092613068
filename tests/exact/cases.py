"""The requests whose distributions are enumerated: each sampling parameter alone, and all together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipelines.speculation.request import GenerationRequest
from pipelines.speculation.sampling.params import SamplingParams
from pipelines.text.vocabulary import Vocabulary
from tests.exact.engines import Table, mixed, reversed_ranks, table

END_ID = 0

THREE = Vocabulary((b"", b"a", b"b"))
FOUR = Vocabulary((b"", b"a", b"b", b"ba"))

RULES = ("coupled", "ratio")


@dataclass(frozen=True)
class Case:
    """One request and the pair that answers it.

    Attributes:
        draft: "near" agrees with the target after half of the contexts, "reversed" reverses the target's
            ranking, "equal" is the target.
        prompt: No token of it begins a bad word or stop word by itself.
    """

    sampling: dict[str, Any] = field(default_factory=dict)
    request: dict[str, Any] = field(default_factory=dict)
    vocabulary: Vocabulary = THREE
    draft: str = "near"
    num_draft_tokens: int = 2
    max_tokens: int = 4
    prompt: tuple[int, ...] = (1, 2, 1)

    @property
    def target_table(self) -> Table:
        return table("target", self.vocabulary.size)

    @property
    def draft_table(self) -> Table:
        target = self.target_table
        if self.draft == "equal":
            return target
        if self.draft == "reversed":
            return reversed_ranks(target)
        assert self.draft == "near"
        return mixed(target, table("draft", self.vocabulary.size), share=2)

    def whole_request(self) -> GenerationRequest:
        return GenerationRequest(
            "exact",
            np.array(self.prompt, np.int32),
            self.max_tokens,
            sampling=SamplingParams(**{"temperature": 1.0, "seed": 7, **self.sampling}),
            **{"end_ids": (END_ID,), **self.request},
        )


CASES = {
    "temperature 1": Case(),
    "temperature 0.6": Case({"temperature": 0.6}),
    "temperature 1.7, reversed draft": Case({"temperature": 1.7}, draft="reversed"),
    "draft equal to target": Case(draft="equal"),
    "no end token": Case(request={"end_ids": ()}, max_tokens=3),
    "greedy": Case({"temperature": 0.0}, max_tokens=8, num_draft_tokens=3),
    "greedy, all that acts on it": Case(
        {
            "temperature": 0.0,
            "repetition_penalty": 1.4,
            "frequency_penalty": 0.3,
            "min_tokens": 3,
            "logit_bias": ((2, 0.75),),
        },
        {"bad_words": (b"aa",), "stop_words": (b"bab",)},
        FOUR,
        max_tokens=8,
        num_draft_tokens=3,
    ),
    "top_k": Case({"top_k": 2}, vocabulary=FOUR),
    "top_k 1": Case({"top_k": 1}, vocabulary=FOUR, max_tokens=6, num_draft_tokens=3),
    "top_p": Case({"top_p": 0.7}, vocabulary=FOUR),
    "min_p": Case({"min_p": 0.4}, vocabulary=FOUR),
    "min_p, top_k and top_p, reversed draft": Case(
        {"min_p": 0.05, "top_k": 3, "top_p": 0.8}, vocabulary=FOUR, draft="reversed"
    ),
    "repetition penalty": Case({"repetition_penalty": 1.8}),
    "repetition reward": Case({"repetition_penalty": 0.6}),
    "presence penalty": Case({"presence_penalty": 1.1}),
    "frequency penalty": Case({"frequency_penalty": 0.7}),
    "frequency reward": Case({"frequency_penalty": -1.3}),
    "two end tokens": Case(request={"end_ids": (2, END_ID)}, vocabulary=FOUR),
    "two end tokens, min_tokens": Case({"min_tokens": 2}, {"end_ids": (END_ID, 3)}, FOUR, draft="reversed"),
    "min_tokens, end token likely": Case({"min_tokens": 2, "logit_bias": ((END_ID, 1.5),)}),
    "end token proposed by a draft that likes it": Case({"logit_bias": ((END_ID, 1.0),)}, draft="reversed"),
    "bad words": Case(request={"bad_words": (b"ab", b"bb")}, vocabulary=FOUR),
    "logit bias": Case({"logit_bias": ((1, -2.0), (2, 0.5))}),
    "stop words": Case(request={"stop_words": (b"ab",)}, vocabulary=FOUR),
    "stop words after min_tokens": Case({"min_tokens": 1}, {"stop_words": (b"a", b"bb")}),
    "everything": Case(
        {
            "temperature": 0.8,
            "min_p": 0.02,
            "top_k": 3,
            "top_p": 0.93,
            "repetition_penalty": 1.3,
            "presence_penalty": 0.4,
            "frequency_penalty": -0.6,
            "min_tokens": 1,
            "logit_bias": ((3, 0.7),),
        },
        {"bad_words": (b"bb",), "stop_words": (b"aba",)},
        FOUR,
    ),
    "K=0": Case(num_draft_tokens=0),
    "K=1": Case(num_draft_tokens=1, max_tokens=3),
    "K=1, twice": Case(
        {"top_k": 2}, {"end_ids": ()}, num_draft_tokens=1, max_tokens=5, prompt=(1, 2, 1, 2, 2)
    ),
    "K=3, with bonus token": Case(num_draft_tokens=3, max_tokens=5),
    "more rounds": Case({"top_k": 2}, {"end_ids": ()}, max_tokens=6),
    "K=3, reversed draft, four tokens": Case(num_draft_tokens=3, draft="reversed", vocabulary=FOUR),
    "K=3, clipped by max_tokens": Case(num_draft_tokens=3, max_tokens=2),
    "one-token prompt": Case({"repetition_penalty": 1.5}, prompt=(2,)),
}
