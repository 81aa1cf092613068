"""Hugging Face transformers: ``generate``, assisted where there is a draft. One request at a time.

Run by the interpreter of the environment ``hf``.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from pipelines.peers.orders import Loaded, LoadOrder, Outcome, RunOrder
from pipelines.peers.program import serve


class _Generator:
    """``generate`` of one model."""

    def __init__(self, order: LoadOrder) -> None:
        import torch
        import transformers

        torch.set_num_threads(order.num_threads)
        self._torch = torch

        def read(folder: str) -> Any:
            # Twice as fast as float32 on CPUs with bfloat16 instructions; there is no INT8 on CPUs.
            return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()

        self._target = read(order.target)
        self._more: dict[str, Any] = {}
        if order.draft is not None:
            draft = read(order.draft)
            # Otherwise it adapts the length and stops early at an unsure draft token.
            draft.generation_config.num_assistant_tokens = order.num_draft_tokens
            draft.generation_config.num_assistant_tokens_schedule = "constant"
            draft.generation_config.assistant_confidence_threshold = 0.0
            self._more["assistant_model"] = draft
        self.loaded = Loaded(
            {"transformers": transformers.__version__, "torch": torch.__version__}, "bfloat16 weights"
        )

    def run(self, order: RunOrder) -> Outcome:
        """Answer prompts, one after another."""
        if order.num_at_once != 1:
            raise ValueError(f"num_at_once={order.num_at_once}; assisted generation refuses batches")
        answers, seconds = [], []
        started_s = time.monotonic()
        for prompt in order.prompts:
            begun_s = time.monotonic()
            answers.append(self._answer(prompt, order.max_tokens))
            seconds.append(time.monotonic() - begun_s)
        return Outcome(tuple(answers), tuple(seconds), time.monotonic() - started_s)

    def _answer(self, prompt: tuple[int, ...], max_tokens: int) -> tuple[int, ...]:
        ids = self._torch.tensor([prompt])
        with self._torch.inference_mode():
            output = self._target.generate(
                ids,
                attention_mask=self._torch.ones_like(ids),
                max_new_tokens=max_tokens,
                do_sample=False,
                **self._more,
            )
        return tuple(output[0].tolist()[len(prompt) :])


if __name__ == "__main__":
    sys.exit(serve(_Generator))
