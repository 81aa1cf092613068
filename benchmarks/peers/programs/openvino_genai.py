"""Run OpenVINO GenAI: continuous batching, with its own speculative decoding if there is a draft.

The interpreter of the environment ``genai`` runs this program.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers.protocol import Loaded, LoadRequest, Outcome, RunRequest, serve

_KV_CACHE_GB = 1  # for all requests; GenAI divides it between target and draft


class _Pipeline:
    """A ``ContinuousBatchingPipeline``."""

    def __init__(self, request: LoadRequest) -> None:
        import numpy
        import openvino
        import openvino_genai

        self._numpy, self._openvino, self._genai = numpy, openvino, openvino_genai
        self._request = request
        properties: dict[str, Any] = {
            **request.compile_properties,
            "INFERENCE_NUM_THREADS": request.num_threads,
        }
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = _KV_CACHE_GB
        scheduler.max_num_seqs = request.max_concurrency
        scheduler.max_num_batched_tokens = request.max_num_tokens
        scheduler.enable_prefix_caching = True
        more = {}
        for folder in (request.target, request.draft):
            if folder is not None:
                _convert_tokenizer(Path(folder))
        if request.draft is not None:
            more["draft_model"] = openvino_genai.draft_model(request.draft, "CPU", **properties)
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            request.target, scheduler, "CPU", {**properties, **more}
        )
        self._handles: dict[int, Any] = {}
        self._num_requests = 0
        self.loaded = Loaded(
            {"openvino": openvino.__version__, "openvino_genai": openvino_genai.__version__},
            "weights and graph of our engine in stateful form; its compile properties and threads",
        )

    def run(self, request: RunRequest) -> Outcome:
        """Answer prompts in a closed loop: when one request ends, the next begins."""
        answers: list[tuple[int, ...]] = [()] * len(request.prompts)
        begun_s = [0.0] * len(request.prompts)
        seconds = [0.0] * len(request.prompts)
        started_s = time.monotonic()
        waiting = iter(range(len(request.prompts)))
        while True:
            while len(self._handles) < request.num_at_once and (index := next(waiting, None)) is not None:
                begun_s[index] = time.monotonic()
                self._add(index, request.prompts[index], request.max_tokens)
            if not self._handles:
                break
            for index, output_ids in self._step():
                answers[index] = tuple(output_ids)
                seconds[index] = time.monotonic() - begun_s[index]
        return Outcome(tuple(answers), tuple(seconds), time.monotonic() - started_s)

    def _add(self, index: int, prompt: tuple[int, ...], max_tokens: int) -> None:
        config = self._genai.GenerationConfig()
        config.max_new_tokens = max_tokens
        config.eos_token_id = self._request.end_ids[0]
        config.stop_token_ids = set(self._request.end_ids)
        config.do_sample = False
        if self._request.draft is not None:
            config.num_assistant_tokens = self._request.num_draft_tokens
        ids = self._openvino.Tensor(self._numpy.array([prompt], dtype=self._numpy.int64))
        self._num_requests += 1  # GenAI requires unique ids
        self._handles[index] = self._pipeline.add_request(self._num_requests, ids, config)

    def _step(self) -> Iterator[tuple[int, list[int]]]:
        """Run one step, and yield the requests that have ended."""
        self._pipeline.step()
        running = self._genai.GenerationStatus.RUNNING
        ended = [index for index, handle in self._handles.items() if handle.get_status() != running]
        for index in ended:
            yield index, list(self._handles.pop(index).read_all()[0].generated_ids)


def _convert_tokenizer(folder: Path) -> None:
    """Convert the tokenizer to OpenVINO models, which GenAI requires although it gets token ids."""
    if (folder / "openvino_detokenizer.xml").exists():
        return
    import openvino
    from openvino_tokenizers import convert_tokenizer
    from transformers import AutoTokenizer

    models = convert_tokenizer(AutoTokenizer.from_pretrained(folder), with_detokenizer=True)
    for name, model in zip(("openvino_tokenizer", "openvino_detokenizer"), models, strict=True):
        openvino.save_model(model, folder / f"{name}.xml")


if __name__ == "__main__":
    sys.exit(serve(_Pipeline))
