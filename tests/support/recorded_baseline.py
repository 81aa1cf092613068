"""A baseline with something in every field, as if a control had been recorded."""

from __future__ import annotations

import math

from pipelines.command_line.prompts import Prompt
from pipelines.errors import ServerBusyError
from pipelines.openai_stream import TokenLogProbs, ToolCall
from pipelines.validation.differences import Difference, Margin
from pipelines.validation.openai.baseline import Answers, Baseline, Settings
from pipelines.validation.openai.comparing import without_unlikely_tokens
from pipelines.validation.openai.sampled import Samples
from pipelines.validation.openai.server.abilities import Abilities
from pipelines.validation.openai.server.answers import Answer
from pipelines.validation.openai.server.server import Question

ABILITIES = Abilities(
    **{"model": "m", "engine": "", "completions": True, "chat": True, "token_ids": True},
    **{"log_probs": 20, "named_ids": True, "prompt_ids": True, "echo": True, "seed": True},
    **{"streams": True, "ends_streams": True, "stream_usage": True, "counts_drafts": False},
)
_QUESTIONS = (
    Question(Prompt("a", "text"), 3, "plain answers"),
    Question(Prompt("b", "", messages="[]"), 3, "answers with a stop word", {"stop": ["x"]}, "both"),
)
_ROW = without_unlikely_tokens(
    Answer("", "", log_probs=(TokenLogProbs("token_id:1", math.nan, {"token_id:1": -0.5}),))
).log_probs[0]
_OWN = Answer("ab", "stop", (1, 2), (5,), (_ROW,), 2, 1, ("m", "f"), (ToolCall("f", "{}"),), "Hm")
_BUSY = ServerBusyError("busy: 429").to_wire()
BASELINE = Baseline(
    settings=Settings(num_prompts=2, max_tokens=3, num_at_once=2, num_sampled=1),
    control="engine model",
    abilities=ABILITIES,
    answers=Answers(
        _QUESTIONS,
        (_OWN, _BUSY),
        (_OWN, _OWN),
        (Difference("a", "token 1", "1", "2", Margin(math.inf)), None),
    ),
    samples=Samples(_QUESTIONS[:1], (((1, 2, -1),),), (((1, 2, 3),),), ("an error",)),
    not_checked=("tools: refused",),
    failures={"ServerBusyError: busy": 1},
    num_retries=4,
    slowest_s=0.5,
    conditions={"date": "2026-11-23T00:00:00Z", "command": "draftproof", "prompts": {"sha256": "0"}},
)
