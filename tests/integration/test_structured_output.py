"""Tests structured output on a real server: the same with every draft, and valid by another library."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import pytest

from pipelines.client import Client, CompletionRequest
from pipelines.deploy.server import Server
from pipelines.errors import InvalidRequestError
from tests.integration.conftest import MAX_DRAFT_LEN, grpc_client, read_gauge, target_alone, wait_until

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("server")]

NO_SPACES = {"x-guidance": {"whitespace_flexible": False}}  # random weights would fill the answer with them
INVOICE = {
    **NO_SPACES,
    "type": "object",
    "properties": {
        "customer_reference_number": {"type": "integer", "minimum": 0, "maximum": 999},
        "delivery_address": {"type": "string", "maxLength": 12},
        "lines": {
            "type": "array",
            "minItems": 1,
            "maxItems": 2,
            "items": {
                "type": "object",
                "properties": {"kind": {"enum": ["goods", "service"]}, "paid": {"type": "boolean"}},
                "required": ["kind", "paid"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["customer_reference_number", "delivery_address", "lines"],
    "additionalProperties": False,
}
SCHEMAS: tuple[dict[str, Any], ...] = (
    INVOICE,
    {
        **NO_SPACES,
        "type": "array",
        "items": {"anyOf": [{"type": "null"}, {"type": "integer", "minimum": -9, "maximum": 99}]},
        "maxItems": 3,
    },
    {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
)
REGEX = r"v\d{1,3}\.\d{1,3}(-rc\d)?"
GUIDES = (
    *(("json_schema", json.dumps(schema)) for schema in SCHEMAS),
    ("regex", REGEX),
    ("choice", json.dumps(["accept", "accept with changes", "reject"])),
    ("ebnf_grammar", 'root ::= "(" root ")" | "x"'),
    ("json", ""),
)
GREEDY = CompletionRequest("def main(", max_tokens=160)
ANSWERS = (GREEDY, dataclasses.replace(GREEDY, temperature=1.0, seed=11))


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with grpc_client(server) as connected:
        yield connected


def follows(guide: tuple[str, str], text: str) -> bool:
    kind, content = guide
    if kind == "json_schema":
        jsonschema.validate(json.loads(text), json.loads(content))
    elif kind == "regex":
        return re.fullmatch(content, text) is not None
    elif kind == "choice":
        return text in json.loads(content)
    elif kind == "json":
        return isinstance(json.loads(text), dict)
    else:
        depth = text.index("x")
        return text == "(" * depth + "x" + ")" * depth
    return True


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide[1][:30])
def test_the_answer_is_valid_and_the_targets_with_any_draft(client: Client, guide: tuple[str, str]) -> None:
    requests = [dataclasses.replace(asked, guide=guide, num_log_probs=2) for asked in ANSWERS]
    with ThreadPoolExecutor(8) as threads:
        for request in requests:
            expected = target_alone(client, request)
            lengths = (None, 0, 1, 4, MAX_DRAFT_LEN)
            found = threads.map(
                lambda length, request=request: client.generate(
                    dataclasses.replace(request, num_draft_tokens=length)
                ),
                lengths,
            )
            for generation in found:
                assert generation.output_ids == expected.output_ids
                assert generation.log_probs == expected.log_probs
                assert generation.finish_reason == expected.finish_reason
            if expected.finish_reason == "stop":
                assert follows(guide, expected.text)
    assert expected.finish_reason == "stop" or guide[0] in ("json", "ebnf_grammar")  # they may go on for ever


@pytest.mark.parametrize("model", ["ensemble", "generate"])
def test_every_text_model_follows_a_guide(server: Server, model: str) -> None:
    request = dataclasses.replace(GREEDY, guide=GUIDES[0])
    with grpc_client(server) as client:
        expected = target_alone(client, request)
        assert client.stream(request, model).result().text == expected.text
        if model != "ensemble":
            assert client.generate(request, model).text == expected.text


def test_forced_tokens_are_drafted_without_the_draft_model(server: Server) -> None:
    """The keys of the schema are long and known, so most of the answer needs no draft step."""
    name = "draftproof_output_tokens_total"
    before = read_gauge(server, name, source="grammar")
    with grpc_client(server) as client:
        answer = client.generate(dataclasses.replace(GREEDY, guide=GUIDES[0], num_draft_tokens=MAX_DRAFT_LEN))
    assert wait_until(lambda: read_gauge(server, name, source="grammar") - before >= 10)
    assert answer.acceptance_rate is not None


@pytest.mark.parametrize(
    ("guide", "found"),
    [
        (("json_schema", ""), "with a guide of"),
        (("", "[a-z]"), "with a guide of"),
        (("regex", "(a"), "unclosed group"),
    ],
)
def test_a_wrong_guide_is_refused(client: Client, guide: tuple[str, str], found: str) -> None:
    for model in ("generate", "generate_target"):
        with pytest.raises(InvalidRequestError, match=found):
            client.generate(dataclasses.replace(GREEDY, guide=guide), model)
