"""Run Hugging Face transformers: ``generate``, with assisted generation if there is a draft.

It processes one request at a time. The interpreter of the environment ``hf`` runs this program.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from benchmarks.peers.protocol import Loaded, LoadRequest, Outcome, RunRequest, serve


class _Generator:
    """A model with its ``generate`` method."""

    def __init__(self, request: LoadRequest) -> None:
        import torch
        import transformers

        torch.set_num_threads(request.num_threads)
        self._torch = torch

        def read(folder: str) -> Any:
            # bfloat16 is twice as fast as float32 on CPUs that support it; INT8 is not available on CPUs.
            return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()

        self._target = read(request.target)
        self._more: dict[str, Any] = {}
        if request.draft is not None:
            draft = read(request.draft)
            # By default, the draft length adapts, and drafting stops at a token of low confidence.
            draft.generation_config.num_assistant_tokens = request.num_draft_tokens
            draft.generation_config.num_assistant_tokens_schedule = "constant"
            draft.generation_config.assistant_confidence_threshold = 0.0
            self._more["assistant_model"] = draft
        self.loaded = Loaded(
            {"transformers": transformers.__version__, "torch": torch.__version__}, "bfloat16 weights"
        )

    def run(self, request: RunRequest) -> Outcome:
        """Answer prompts one after another."""
        if request.num_at_once != 1:
            raise ValueError(
                f"num_at_once={request.num_at_once}; assisted generation does not support batches"
            )
        answers, seconds = [], []
        started_s = time.monotonic()
        for prompt in request.prompts:
            begun_s = time.monotonic()
            answers.append(self._answer(prompt, request.max_tokens))
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
