"""Tests that a text model reads what the client writes, field by field."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from pipelines.client.tensors import inputs_of
from pipelines.triton.backend.inputs import completion_request
from pipelines.wire.fields import TEXT_INPUTS
from pipelines.wire.request import CompletionRequest

_DTYPES = {"BOOL": np.bool_, "INT32": np.int32, "UINT64": np.uint64, "FP32": np.float32, "BYTES": np.object_}
FULL = CompletionRequest(
    prompt="naïve ☕",
    max_tokens=5,
    temperature=0.5,
    top_k=4,
    top_p=0.25,
    seed=2**64 - 1,
    stop_words=("a", "☕"),
    end_id=-1,
    num_draft_tokens=0,
    min_p=0.125,
    repetition_penalty=1.5,
    presence_penalty=-0.5,
    frequency_penalty=2.0,
    min_tokens=3,
    bad_words=("b",),
    logit_bias=((5, -100.0), (0, 0.5)),
    guide=("json", ""),
    num_log_probs=0,
    return_prompt_log_probs=True,
    use_draft_logits=True,
    session_id="s",
    cache_salt="c",
    prediction="p",
    arm="control",
    add_special_tokens=False,
    parse_special_tokens=True,
    skip_special_tokens=False,
    resume_output_ids=(7, 8),
    stop_token_ids=(9,),
)


def tensors_of(request: CompletionRequest) -> dict[str, Any]:
    """Return the tensors as Triton hands them to a model."""
    found = {}
    for each in inputs_of(request, streaming=True):
        values = [value.encode() if isinstance(value, str) else value for value in each.values]
        found[each.name] = np.array([values], _DTYPES[each.datatype])
    return found


@pytest.mark.parametrize(
    "request_sent",
    [FULL, CompletionRequest("x"), CompletionRequest(prompt_ids=(1, 2), guide=("regex", "[ab]+"))],
)
def test_every_field_arrives(request_sent: CompletionRequest) -> None:
    assert completion_request(tensors_of(request_sent)) == request_sent


def test_the_client_sends_each_tensor_of_the_table_with_its_type() -> None:
    plain = {field.name: field.default for field in dataclasses.fields(CompletionRequest)}
    same = [name for name, value in plain.items() if getattr(FULL, name) == value]
    assert same == ["prompt_ids"], "the request differs from its defaults everywhere else"
    sent = [
        *inputs_of(dataclasses.replace(FULL, guide=("regex", "a")), streaming=True),
        *inputs_of(CompletionRequest(prompt_ids=(1,)), streaming=True),
    ]
    told = {each.name: (each.datatype, each.is_list) for each in sent}
    assert told == {name: (each.datatype, each.is_list) for name, each in TEXT_INPUTS.items()}
