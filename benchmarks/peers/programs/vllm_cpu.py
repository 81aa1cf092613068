"""Run vLLM on a CPU, with a draft model if there is one.

The interpreter of the environment ``vllm`` runs this program.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from benchmarks.peers.protocol import Loaded, LoadRequest, Outcome, RunRequest, run_stepped, serve

_KV_CACHE_GIB = 1
_SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": str(_KV_CACHE_GIB),
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # a second process would compete for the cores
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


class _Engine:
    """vLLM's engine in this process."""

    def __init__(self, request: LoadRequest) -> None:
        os.environ.update(_SETTINGS)
        import torch
        import vllm

        # With AVX2 alone, torch multiplies bfloat16 so slowly that warming up takes more than seven minutes.
        dtype = "float32" if torch.backends.cpu.get_cpu_capability() == "AVX2" else "bfloat16"
        speculative = {
            "method": "draft_model",
            "model": request.draft,
            "num_speculative_tokens": request.num_draft_tokens,
        }
        self._engine = vllm.LLM(
            request.target,
            dtype=dtype,
            max_model_len=request.max_seq_len,
            max_num_seqs=request.max_concurrency,
            max_num_batched_tokens=request.max_num_tokens,
            skip_tokenizer_init=True,
            speculative_config=speculative if request.draft else None,
        ).llm_engine
        self._vllm, self._end_ids = vllm, list(request.end_ids)
        self._num_requests = 0
        self._indices: dict[str, int] = {}
        self.loaded = Loaded(
            {"vllm": vllm.__version__, "torch": torch.__version__},
            f"{dtype}; weights are the INT8 of our engine, but for embedding and output head, "
            "if the folder is called compressed_tensors",
        )

    def run(self, request: RunRequest) -> Outcome:
        """Answer prompts."""
        return run_stepped(self, request)

    def add(self, index: int, prompt: tuple[int, ...], max_tokens: int) -> None:
        """Add a request."""
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
        """Run one step, and yield the requests that have ended."""
        for output in self._engine.step():
            if output.finished:
                yield self._indices.pop(output.request_id), list(output.outputs[0].token_ids)


if __name__ == "__main__":
    sys.exit(serve(_Engine))
