"""vLLM on CPUs: its engine in this process, with a draft model where there is one.

Run by the interpreter of the environment ``vllm``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

from pipelines.peers.orders import Loaded, LoadOrder, Outcome, RunOrder
from pipelines.peers.program import run_stepped, serve

_KV_CACHE_GIB = 1
_SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": str(_KV_CACHE_GIB),
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # a second process would only take time from two cores
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


class _Engine:
    """vLLM's own engine, stepped from here."""

    def __init__(self, order: LoadOrder) -> None:
        os.environ.update(_SETTINGS)
        import torch
        import vllm

        more: dict[str, Any] = {}
        if order.draft is not None:
            more["speculative_config"] = {
                "method": "draft_model",
                "model": order.draft,
                "num_speculative_tokens": order.num_draft_tokens,
            }
        self._engine = vllm.LLM(
            order.target,
            dtype="bfloat16",
            max_model_len=order.max_seq_len,
            max_num_seqs=order.max_num_at_once,
            skip_tokenizer_init=True,
            **more,
        ).llm_engine
        self._vllm, self._end_ids = vllm, list(order.end_ids)
        self._num_requests = 0
        self._indices: dict[str, int] = {}
        self.loaded = Loaded(
            {"vllm": vllm.__version__, "torch": torch.__version__},
            "bfloat16 activations; INT8 weights of our engine, but for embedding and output head, "
            "if the folder is called compressed_tensors",
        )

    def run(self, order: RunOrder) -> Outcome:
        """Answer prompts."""
        return run_stepped(self, order)

    def add(self, index: int, prompt: tuple[int, ...], max_tokens: int) -> None:
        """Take a request."""
        parameters = self._vllm.SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            stop_token_ids=self._end_ids,
            detokenize=False,
            output_kind=self._vllm.sampling_params.RequestOutputKind.FINAL_ONLY,
        )
        self._num_requests += 1
        request_id = str(self._num_requests)
        self._indices[request_id] = index
        self._engine.add_request(request_id, {"prompt_token_ids": list(prompt)}, parameters)

    def step(self) -> Iterator[tuple[int, list[int]]]:
        """Compute once; what ended."""
        for output in self._engine.step():
            if output.finished:
                yield self._indices.pop(output.request_id), list(output.outputs[0].token_ids)


if __name__ == "__main__":
    sys.exit(serve(_Engine))
