"""Compile the schemas of the JSON Schema Test Suite, and compare their grammars with the suite's verdicts.

``python -m benchmarks.schema_suite --suite DIR`` reads ``DIR/<draft>/*.json``. The suite is part of the
source archive of the package ``jsonschema``, in ``json/tests``. The JSON text of each instance is offered to
the grammar of its schema token by token. An invalid instance that is allowed is an error of the grammar. A
valid one that is not allowed shows a grammar that is narrower than the schema: properties come in the order
of the schema, for instance. The last line of standard output is JSON. Exit codes: 0 success; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.bench.reporting.conditions import conditions
from pipelines.errors import InvalidRequestError
from pipelines.program import EXIT_PASS, run_program
from pipelines.text.guides import GrammarCompiler, Guide
from pipelines.text.prompt_tokenizer import PromptTokenizer

DRAFTS = ("draft7", "draft2020-12")
TOKENIZER = Path("engines/demo_pair/target/tokenizer.json")


@dataclass
class Verdicts:
    """Counts over one draft of the suite.

    Attributes:
        draft: Its name.
        num_schemas: Schemas.
        num_refused: Schemas that are refused when they are compiled.
        num_valid: Valid instances of the schemas that compile.
        num_valid_allowed: Those whose text the grammar allows.
        num_invalid: Invalid instances of the schemas that compile.
        num_invalid_allowed: Those whose text the grammar allows.
        refused: Refused schemas by the file of the suite, which is named after a keyword.
        wrong: Descriptions of the invalid instances that are allowed.
    """

    draft: str
    num_schemas: int = 0
    num_refused: int = 0
    num_valid: int = 0
    num_valid_allowed: int = 0
    num_invalid: int = 0
    num_invalid_allowed: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


def judge_draft(folder: Path, tokenizer: PromptTokenizer) -> Verdicts:
    """Judge the schemas of one draft of the suite.

    Args:
        folder: Folder with the draft's JSON files.
        tokenizer: Tokenizer of a model.
    """
    vocabulary = tokenizer.vocabulary
    compiler = GrammarCompiler(
        vocabulary, vocabulary.size, lambda: lambda text: tokenizer.encode(text, add_special_tokens=False)
    )
    found = Verdicts(folder.name)
    for path in sorted(folder.glob("*.json")):
        for group in json.loads(path.read_text(encoding="utf-8")):
            found.num_schemas += 1
            guide = Guide("json_schema", json.dumps(group["schema"]))
            try:
                compiler.compile(guide)
            except InvalidRequestError:
                found.num_refused += 1
                found.refused[path.stem] = found.refused.get(path.stem, 0) + 1
                continue
            for test in group["tests"]:
                is_allowed = _allows(compiler, guide, tokenizer, test["data"])
                if test["valid"]:
                    found.num_valid += 1
                    found.num_valid_allowed += is_allowed
                else:
                    found.num_invalid += 1
                    found.num_invalid_allowed += is_allowed
                    if is_allowed:
                        found.wrong.append(f"{path.stem}: {group['description']}: {test['description']}")
    return found


def _allows(compiler: GrammarCompiler, guide: Guide, tokenizer: PromptTokenizer, instance: Any) -> bool:
    grammar = compiler.compile(guide)
    output: list[int] = []
    for token_id in tokenizer.encode(json.dumps(instance, ensure_ascii=False), add_special_tokens=False):
        if not grammar.after(np.array(output, np.int32)).allowed()[token_id]:
            return False
        output.append(token_id)
    return grammar.after(np.array(output, np.int32)).may_end


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.schema_suite", description=__doc__)
    parser.add_argument("--suite", type=Path, required=True, help="folder json/tests of jsonschema's archive")
    options = parser.parse_args(arguments)
    command_line = sys.argv[1:] if arguments is None else list(arguments)
    return run_program(lambda: _judge_and_print(options.suite, command_line))


def _judge_and_print(suite: Path, command_line: list[str]) -> int:
    tokenizer = PromptTokenizer(TOKENIZER.read_bytes(), TOKENIZER)
    verdicts = [judge_draft(suite / draft, tokenizer) for draft in DRAFTS]
    for each in verdicts:
        print(
            f"{each.draft}: {each.num_refused} of {each.num_schemas} schemas refused; "
            f"{each.num_invalid_allowed} of {each.num_invalid} invalid instances allowed; "
            f"{each.num_valid_allowed} of {each.num_valid} valid ones allowed"
        )
    context = conditions("benchmarks.schema_suite", ["--suite", "json/tests", *command_line[2:]])
    document = {
        "drafts": [asdict(each) for each in verdicts],
        "packages": {name: version(name) for name in ("llguidance", "jsonschema")},
        "conditions": context,
    }
    print(json.dumps(document))
    return EXIT_PASS


if __name__ == "__main__":
    sys.exit(main())
