"""Replaces ``ServerCalls`` in tests of the adapters: the stand-in answers in their own process."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from build.files import write_manifest
from build.tensorrt_llm.command import GATHERS_LOGITS
from pipelines.manifest import MANIFEST_NAME, EngineFiles, engine_digest
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.tensorrt_llm.server_calls import model_error
from tests.stand_in_tensorrt_llm.generation import Life, outputs, steps
from tests.stand_in_tensorrt_llm.network import END_IDS, VOCAB_SIZE
from tests.stand_in_tensorrt_llm.request import Limits, Refused, Tensors, parse
from tests.support.tiny_engines import write_tokenizer


@dataclass
class InProcessCalls:
    """A replacement for ``ServerCalls`` that records the requests."""

    draft_columns: int = VOCAB_SIZE
    target_columns: int = VOCAB_SIZE
    draft_gathers_logits: bool = GATHERS_LOGITS["draft"]
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
            excludes_input=False,
            gathers_generation_logits=is_draft and self.draft_gathers_logits,
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
    """Return settings of ``speculative``; the engine directory that they name gets only a tokenizer."""
    write_tokenizer(directory / "tokenizer.json", VOCAB_SIZE)
    if not (directory / MANIFEST_NAME).exists():
        write_manifest(directory, {})
    digest = engine_digest(EngineFiles(directory).manifest)
    values = {
        "draft_engine_dir": str(directory),
        "draft_engine_digest": digest,
        "target_engine_digest": digest,
        "target_engine_dir": str(directory),
        "end_ids": ",".join(map(str, END_IDS)),
        "vocab_size": str(VOCAB_SIZE),
        "padded_vocab_size": str(VOCAB_SIZE),
        "draft_vocab_size": str(VOCAB_SIZE),
        "draft_padded_vocab_size": str(VOCAB_SIZE),
        "max_seq_len": "512",
    }
    return ModelParameters("speculative", {**values, **changes})
