"""Ask a running server for structured answers and tool calls, and validate each with ``jsonschema``.

``python -m benchmarks.structured_answers --url http://127.0.0.1:9000`` asks ``/v1/completions`` for answers
of each class of schemas, sampled with one seed each, until enough of them are whole. Every twentieth is asked
again without a draft and must be the same. The last line of standard output is JSON. Exit codes: 0 every
whole answer is valid and the same without a draft; 1 some are not; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version
from itertools import islice
from typing import Any

import httpx
import jsonschema  # type: ignore[import-untyped]

from pipelines.bench.reporting.conditions import conditions
from pipelines.front_door.messages.answer_format import GuideTensors, enforceable
from pipelines.front_door.messages.grammar import Thinking, guide_of_answer
from pipelines.front_door.messages.parts import CallArguments, CallBegin
from pipelines.front_door.messages.reader import MessageReader
from pipelines.front_door.messages.style import HERMES, MessageStyle
from pipelines.front_door.messages.tools import Calling, Function
from pipelines.program import EXIT_FAIL, EXIT_PASS, run_program

NUM_ANSWERS = 1000
NUM_CONCURRENT = 16
MAX_TOKENS = 120
TEMPERATURE = 1.0
PROMPTS = ("def area(radius):\n    ", "import json\n\n", "class Point:\n", "# A list of names\n")
_WORD = {"type": "string", "maxLength": 12}

SCHEMAS: Mapping[str, dict[str, Any]] = {
    "objects": {
        "type": "object",
        "properties": {"name": _WORD, "age": {"type": "integer", "minimum": 0, "maximum": 150}, "ok": {}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    "arrays": {"type": "array", "items": {"type": "array", "items": _WORD, "maxItems": 3}, "maxItems": 3},
    "choices": {
        "anyOf": [{"enum": ["red", "green", 3, None]}, {"const": {"a": [True]}}, {"type": "boolean"}]
    },
    "numbers": {
        "type": "object",
        "properties": {
            "ratio": {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
            "port": {"type": "integer", "minimum": 1024, "maximum": 65535},
        },
        "required": ["ratio", "port"],
        "additionalProperties": False,
    },
    "texts": {
        "type": "object",
        "properties": {
            "day": {"type": "string", "format": "date"},
            "key": {"type": "string", "pattern": "^[a-f0-9]{8}(-[a-f0-9]{4}){2}$"},
        },
        "required": ["day", "key"],
        "additionalProperties": False,
    },
    "recursion": {
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 4},
                    "trees": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2},
                },
                "required": ["name", "trees"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/tree",
    },
}
TOOLS = tuple(
    Function(name=f"use_{name}", parameters=schema, strict=True)
    for name, schema in SCHEMAS.items()
    if schema.get("type") == "object"
)
CALLS = "tool calls"


@dataclass
class Validity:
    """Counts over the answers of one class.

    Attributes:
        name: The class: a key of ``SCHEMAS``, or ``CALLS``.
        num_asked: Answers that were asked for.
        num_whole: Those that ended before ``MAX_TOKENS``.
        num_valid: Whole answers that the validator accepts.
        num_compared: Answers that were asked for again without a draft.
        num_equal: Those that were the same.
        num_drafted: Draft tokens of all answers.
        num_accepted: Accepted draft tokens.
        wrong: Whole answers that the validator refuses.
    """

    name: str
    num_asked: int = 0
    num_whole: int = 0
    num_valid: int = 0
    num_compared: int = 0
    num_equal: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        """Whether every whole answer is valid, and none depends on the draft."""
        return self.num_valid == self.num_whole and self.num_equal == self.num_compared


def judge_class(client: httpx.Client, name: str, num_answers: int) -> Validity:
    """Ask for answers of one class until enough are whole, or twice as many were asked for."""
    found = Validity(name)
    with ThreadPoolExecutor(NUM_CONCURRENT) as pool:
        seeds = iter(range(2 * num_answers))
        while found.num_whole < num_answers and (batch := list(islice(seeds, 10 * NUM_CONCURRENT))):
            for seed, choice in zip(batch, pool.map(partial(_ask, client, name), batch), strict=True):
                _count(found, choice)
                if seed % 20 == 0:
                    found.num_compared += 1
                    alone = _ask(client, name, seed, num_draft_tokens=0)
                    found.num_equal += alone["text"] == choice["text"]
    return found


def _ask(client: httpx.Client, name: str, seed: int, **changes: Any) -> dict[str, Any]:
    kind, text = guide_of(name)
    body = {
        "prompt": PROMPTS[seed % len(PROMPTS)],
        "max_tokens": MAX_TOKENS,
        "temperature": TEMPERATURE,
        "seed": seed,
        "structured_outputs": {"grammar" if kind == "lark_grammar" else "json": text},
        **changes,
    }
    response = client.post("/v1/completions", json=body)
    response.raise_for_status()
    document = response.json()
    return {**document["choices"][0], "metrics": document["metrics"]}


def guide_of(name: str) -> GuideTensors:
    """Return the guide of a class."""
    if name != CALLS:
        return ("json_schema", enforceable(SCHEMAS[name], strict=True))
    guide = guide_of_answer(
        MessageStyle(HERMES), Thinking.NONE, Calling(TOOLS, "required", is_parallel=False), None
    )
    assert guide is not None
    return guide


def _count(found: Validity, choice: Mapping[str, Any]) -> None:
    found.num_asked += 1
    drafts = (choice["metrics"] or {}).get("speculative_decoding", {})
    found.num_drafted += drafts.get("num_draft_tokens", 0)
    found.num_accepted += drafts.get("num_accepted_draft_tokens", 0)
    if choice["finish_reason"] == "stop":
        found.num_whole += 1
        if is_valid(found.name, choice["text"]):
            found.num_valid += 1
        else:
            found.wrong.append(choice["text"])


def is_valid(name: str, text: str) -> bool:
    """Return whether the validator accepts a whole answer of a class."""
    try:
        for schema, instance in _instances(name, text):
            jsonschema.validate(
                json.loads(instance), schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
            )
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def _instances(name: str, text: str) -> list[tuple[dict[str, Any], str]]:
    """Return the JSON texts of an answer with their schemas."""
    if name != CALLS:
        return [(SCHEMAS[name], text)]
    reader = MessageReader(Thinking.NONE, HERMES, is_structured=True)
    parts = [*reader.read(text), *reader.end()]
    names = [part.name for part in parts if isinstance(part, CallBegin)]
    arguments = [part.text for part in parts if isinstance(part, CallArguments)]
    if not names:
        raise ValueError("no call")
    return [
        (SCHEMAS[called.removeprefix("use_")], given) for called, given in zip(names, arguments, strict=True)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.structured_answers", description=__doc__)
    parser.add_argument("--url", required=True, help="address of the front door")
    parser.add_argument("--answers", type=int, default=NUM_ANSWERS, help="whole answers of each class")
    options = parser.parse_args(arguments)
    command_line = sys.argv[1:] if arguments is None else list(arguments)
    return run_program(lambda: _judge_and_print(options.url, options.answers, command_line))


def _judge_and_print(url: str, num_answers: int, command_line: list[str]) -> int:
    found = []
    with httpx.Client(base_url=url, timeout=600, trust_env=False) as client:
        model = client.get("/v1/models").json()["data"][0]
        for name in (*SCHEMAS, CALLS):
            each = judge_class(client, name, num_answers)
            found.append(each)
            print(
                f"{name}: {each.num_valid} of {each.num_whole} whole answers valid, {each.num_equal} of "
                f"{each.num_compared} the same without a draft; {each.num_asked} asked",
                flush=True,
            )
    document = {
        "model": {key: model[key] for key in ("id", "system_fingerprint")},
        "max_tokens": MAX_TOKENS,
        "temperature": TEMPERATURE,
        "classes": [asdict(each) for each in found],
        "packages": {name: version(name) for name in ("llguidance", "jsonschema")},
        "conditions": conditions("benchmarks.structured_answers", command_line),
    }
    print(json.dumps(document))
    return EXIT_PASS if all(each.is_right for each in found) else EXIT_FAIL


if __name__ == "__main__":
    sys.exit(main())
