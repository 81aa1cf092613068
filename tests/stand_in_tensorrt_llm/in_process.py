"""The stand-in without a server: what the adapters call, answered at once in their own process."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.serving.parameters import ModelParameters
from pipelines.serving.server_calls import model_error
from tests.stand_in_tensorrt_llm.generation import Life, outputs, steps
from tests.stand_in_tensorrt_llm.network import END_IDS, VOCAB_SIZE
from tests.stand_in_tensorrt_llm.request import Limits, Refused, Tensors, parse
from tests.tiny_engines import write_tokenizer


@dataclass
class InProcessCalls:
    """Stands for ``ServerCalls``; keeps what was asked."""

    draft_columns: int = VOCAB_SIZE
    target_columns: int = VOCAB_SIZE
    asked: list[tuple[str, Tensors]] = field(default_factory=list)

    async def whole(self, model_name: str, tensors: Tensors, names: Iterable[str], **others: Any) -> Tensors:
        responses = [response async for response in self.stream(model_name, tensors, names, **others)]
        return responses[-1]

    async def stream(
        self, model_name: str, tensors: Tensors, names: Iterable[str], **_: Any
    ) -> AsyncGenerator[Tensors, None]:
        self.asked.append((model_name, tensors))
        is_draft = model_name == "draft"
        limits = Limits(
            vocab_size=VOCAB_SIZE,
            padded_vocab_size=self.draft_columns if is_draft else self.target_columns,
            max_seq_len=520,
            max_input_len=519,
            max_draft_len=0 if is_draft else 8,
            max_beam_width=1,
            excludes_input=False,
            normalizes_log_probs=False,
        )
        try:
            request = parse({name: np.array(array) for name, array in tensors.items()}, limits)
        except Refused as refused:
            raise model_error(model_name, str(refused)) from None
        life, num_sent = Life(), 0
        for _step in steps(request, limits, life, is_draft=is_draft):
            if request.streaming and len(life.new_ids) < request.max_new_tokens:
                yield _only(outputs(request, limits, life, num_sent), names)
                num_sent = len(life.new_ids)
        yield _only(outputs(request, limits, life, num_sent), names)


def _only(tensors: Tensors, names: Iterable[str]) -> Tensors:
    wanted = set(names)
    return {name: array for name, array in tensors.items() if name in wanted}


def parameters(directory: Path, **changes: str) -> ModelParameters:
    """Settings of ``speculative``; writes the tokenizer that they name."""
    write_tokenizer(directory / "tokenizer.json", VOCAB_SIZE)
    values = {
        "draft_model": "draft",
        "target_model": "target",
        "target_engine_dir": str(directory),
        "end_ids": ",".join(map(str, END_IDS)),
        "vocab_size": str(VOCAB_SIZE),
        "padded_vocab_size": str(VOCAB_SIZE),
        "draft_vocab_size": str(VOCAB_SIZE),
        "draft_padded_vocab_size": str(VOCAB_SIZE),
        "max_seq_len": "512",
        "fast_logits": "false",
    }
    return ModelParameters("speculative", {**values, **changes})
