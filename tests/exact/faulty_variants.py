"""Faults known from speculative decoders, each as a small change of the real code.

``VARIANTS[name](monkeypatch)`` applies the fault until the monkeypatch is undone. A test suite that lets one
of them pass is itself broken: ``test_faulty_variants`` records which check rejects which fault, and the
statistical tests use them as negative controls.

A variant replaces a piece of a function's source and gives the function the new code, so every module that
imported the function has the fault. The piece must occur exactly once: if the code changes, the variant fails
instead of testing nothing.

Source: defects of vLLM, vllm-ascend, OpenVINO GenAI and others of 2025 and 2026. The project promises to
reject the first eleven.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest

from pipelines.executor.batch_class import BatchClass
from pipelines.executor.request import AnswerRequest, Request
from pipelines.speculation import loop
from pipelines.speculation.sampling import draws, logits_processing, noise
from pipelines.speculation.sampling.sampler import Sampler

Variant = Callable[[pytest.MonkeyPatch], None]

_IS_ACCEPTED = "draws.is_accepted(p[draft_id], q[draft_id], seed, self.position)"
_DRAW = "return draws.draw_token(scores, self._sampling.seed, self._stream, self.position)"


def _changed(function: Any, piece: str, replacement: str) -> Variant:
    """Make a variant that replaces a piece of a function's source."""
    assert isinstance(function, FunctionType)

    def apply(monkeypatch: pytest.MonkeyPatch) -> None:
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(piece) == 1, f"{function.__qualname__} no longer has {piece!r} exactly once"
        names: dict[str, Any] = {}
        exec(source.replace(piece, replacement), function.__globals__, names)
        monkeypatch.setattr(function, "__code__", names[function.__name__].__code__)

    return apply


VARIANTS: dict[str, Variant] = {
    "shared noise with the ratio rule": _changed(
        Sampler.__init__,
        "NoiseStream.DRAFT if request.independent_noise else NoiseStream.SHARED",
        "NoiseStream.SHARED",
    ),
    "u fixed at 0": _changed(Sampler.verify, _IS_ACCEPTED, "0 * q[draft_id] < p[draft_id]"),
    "inverted ratio": _changed(
        Sampler.verify, _IS_ACCEPTED, "draws.is_accepted(q[draft_id], p[draft_id], seed, self.position)"
    ),
    "no residual": _changed(Sampler.verify, "np.maximum(p - q, 0)", "p"),
    "q from raw logits": _changed(
        Sampler.verify, "self.distribution_scores(draft_logits)", "draft_logits.astype(np.float64)"
    ),
    "argmax that ignores temperature": _changed(Sampler.choose, _DRAW, "return int(np.argmax(scores))"),
    "off by one position": _changed(
        AnswerRequest._choose, "self._draft_logits[num_accepted]", "self._draft_logits[num_accepted - 1]"
    ),
    "bonus token from the draft": _changed(
        loop.speculate,
        "verified = await loop.verify(proposal)\n",
        "verified = await loop.verify(proposal)\n"
        "            draft_ids = proposal.token_ids\n"
        "            if draft_ids.size and len(verified.token_ids) > len(draft_ids):\n"
        "                bonus = await loop._call_draft(draft_ids, 1, None)\n"
        "                token_ids = np.concatenate((draft_ids, bonus.token_ids))\n"
        "                verified = replace(verified, token_ids=token_ids)\n",
    ),
    "reseeding per token": _changed(
        Sampler.choose, _DRAW, "return draws.draw_token(scores, self._sampling.seed, self._stream, 0)"
    ),
    "a draft cache one token behind after full acceptance": _changed(
        BatchClass.take,
        "    if output is not None and output.is_final:\n",
        "    if output is not None and output.finish_reason == 'length' and not request.is_verification:\n"
        "        request.num_computed += request.num_computed % self.cache.block_size > 0\n"
        "    if output is not None and output.is_final:\n",
    ),
    "penalties applied to one side only": _changed(
        Sampler._adjust,
        "if self._counts is not None:",
        "if self._counts is not None and self._stream is NoiseStream.SHARED:",
    ),
    # More faults of the same kind.
    "a draft that takes the argmax whatever the temperature": _changed(
        Sampler.choose,
        _DRAW,
        f"if self._stream is NoiseStream.DRAFT: return int(np.argmax(scores))\n        {_DRAW}",
    ),
    "temperature forgotten": _changed(
        logits_processing.truncate, "scores / sampling.temperature", "scores.copy()"
    ),
    "recovered token drawn with the draft's noise": _changed(
        Sampler.verify, "seed, NoiseStream.SHARED, self.position", "seed, NoiseStream.DRAFT, self.position"
    ),
    "target's noise off by one position": _changed(
        Sampler.__init__,
        "self.num_output = self.position - request.num_prompt_tokens\n",
        "self.num_output = self.position - request.num_prompt_tokens\n"
        "    self.position -= len(request.draft_input_ids) > 0\n",
    ),
    "end token never proposed to the ratio rule": _changed(
        Request._take_token, "if self.asked.independent_noise:", "if False:"
    ),
    "penalties that do not see the round's own tokens": _changed(
        Sampler.push, "self._counts.add(token_id)", "pass"
    ),
    "min_tokens counted anew in every round": _changed(
        Sampler.__init__, "self.position - request.num_prompt_tokens", "0"
    ),
    "every token but the last counted as accepted": _changed(
        loop._Loop.take,
        "count_accepted(draft_ids[:num_verified], verified.token_ids)",
        "len(verified.token_ids) - 1",
    ),
    "coin made of the draft's noise": _changed(
        draws.is_accepted, "NoiseStream.ACCEPTANCE", "NoiseStream.DRAFT"
    ),
    "one stream for all noise": _changed(noise.words_at, "[seed, stream]", "[seed, 0]"),
    "a new seed for every token": _changed(
        Sampler.choose,
        _DRAW,
        "import secrets\n"
        "        return draws.draw_token(scores, secrets.randbits(53), self._stream, self.position)",
    ),
}
