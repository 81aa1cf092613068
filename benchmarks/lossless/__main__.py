"""Compare answers of engines with speculation and without, on the published pair.

``python -m benchmarks.lossless --output docs/results/lossless.json`` asks every engine; ``--only`` names
some, and the file keeps its other rows. Engines with an OpenAI server are asked by ``draftproof verify``;
OpenVINO GenAI has none, so its token ids are compared. Exit codes: 0 measured, whatever was found; 1 an
engine could not be asked; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from benchmarks.harness import Result, markdown, parser_of, run_benchmark
from benchmarks.peers.environment import ensure_environment
from benchmarks.peers.llama_cpp import LlamaCpp, Settings, gguf_files
from build.recipe import load_recipe
from pipelines.bench.reporting.conditions import conditions
from pipelines.command_line.options import whole_number
from pipelines.command_line.prompt_choice import choose_prompts
from pipelines.command_line.running_server import local_server
from pipelines.deploy.server import run_directory
from pipelines.errors import PeerError
from pipelines.validation.__main__ import main as verify
from pipelines.validation.differences import common_length

ENGINES = ("draftproof", "llama.cpp", "openvino genai")
_MAX_TOKENS, _NUM_DRAFT_TOKENS = 16, 4
_SIZES = 1, 8, 2048  # threads, concurrent requests, and tokens of each, of llama.cpp
_WAYS = ("differ one at a time", "differ all at once")
_GENAI = Path(__file__).with_name("genai_answers.py")
Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = parser_of("benchmarks.lossless", __doc__ or "", "qwen2-5-coder-cpu")
    parser.add_argument("--only", nargs="+", choices=ENGINES, default=ENGINES, help="engines (default: all)")
    parser.add_argument("--num-prompts", type=whole_number(1), default=8, help="(%(default)s)")
    parser.add_argument("--genai", metavar="PYTHON", help="interpreter of an environment with openvino-genai")
    parser.add_argument("--genai-draft", metavar="FILE", help="the draft in Q8_0, which its reader knows")
    return run_benchmark(parser, _measure, arguments)


def _measure(options: argparse.Namespace, command_line: list[str]) -> Result:
    if ENGINES[-1] in options.only and not (options.genai and options.genai_draft):
        raise PeerError(f"{ENGINES[-1]} needs --genai and --genai-draft", "or name the others with --only")
    about = conditions("benchmarks.lossless", command_line, recipe=options.recipe)
    new = {
        engine: _of_genai(options) if engine == ENGINES[-1] else _verified(engine, options)
        for engine in options.only
    }
    has_rows = options.output and options.output.exists()
    rows: dict[str, Row] = json.loads(options.output.read_text())["rows"] if has_rows else {}
    rows |= {engine: row | {"conditions": about} for engine, row in new.items()}
    table = [[engine, *kind.values()] for engine, row in rows.items() for kind in row["kinds"]]
    heads = ["engine", "kind", "answers", *_WAYS, "without speculation, again", "share seen with 95%"]
    return Result(markdown(heads, table), {"rows": rows, "conditions": about})


def _verified(engine: str, options: argparse.Namespace) -> Row:
    """Let verify compare an engine's server with speculation and one without."""
    recipe, size = options.recipe, f"--num-prompts {options.num_prompts} --max-tokens {_MAX_TOKENS}".split()
    with ExitStack() as stack:
        if engine == "draftproof":
            server = stack.enter_context(local_server(recipe, with_openai=True))
            urls, version = [f"http://127.0.0.1:{server.ports.openai}"] * 2, "this commit"
            urls += ["--control-fields", '{"num_draft_tokens": 0}']
        else:
            files, python = gguf_files(load_recipe(recipe)), ensure_environment("llama-cpp")
            urls = []
            for length in (_NUM_DRAFT_TOKENS, 0):
                settings = Settings(files["target"], files["draft"], length, *_SIZES)
                peer = LlamaCpp(python, settings, (), run_directory(recipe) / f"lossless-{length}.log")
                urls.append(stack.enter_context(closing(peer)).url)
                version = f"xllamacpp {peer.version}"
        report = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "report.json"
        verify(["--against", urls[0], "--control", *urls[1:], *size, "--json", str(report)])
        verdict, asked, *_, missing = (each["figures"] for each in json.loads(report.read_text())["sections"])
    kept = {name: verdict[name] for name in ("sentence", "faults", "doubts", "differences")}
    for each in kept["differences"]:
        del each["curl"]  # it names a folder of this machine
    return {"version": version, "kinds": asked["kinds"], **kept, "not_checked": missing["not_checked"]}


def _of_genai(options: argparse.Namespace) -> Row:
    """Compare token ids of greedy answers."""
    drawn = choose_prompts(options.prompts, options.recipe).draw(options.num_prompts)
    prompts = [each.text for each in drawn.all]
    target = gguf_files(load_recipe(options.recipe))["target"]
    given = target, options.genai_draft, prompts, _MAX_TOKENS, _NUM_DRAFT_TOKENS
    command = [options.genai, _GENAI, json.dumps(given)]
    told = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    kinds, differences, answers = list[Row](), list[Row](), told["answers"]
    own = [*answers.pop("without"), *answers.pop("without, again")]
    noise = sum(any(each != first for each in others) for first, *others in zip(*own, strict=True))
    for kind, runs in answers.items():
        counts = dict.fromkeys(_WAYS, 0)
        for way, run in zip(_WAYS, runs, strict=True):
            for prompt, one, two in zip(prompts, own[0], run, strict=True):
                if one != two:
                    counts[way] += 1
                    about = {"kind": kind, "asked": way, "prompt": prompt, "control": one, "candidate": two}
                    differences.append(about | {"position": f"token {common_length(one, two)}"})
        kinds.append({"kind": kind, "questions": len(prompts), **counts, "control's own": noise})
    return {"version": told["version"], "kinds": kinds, "differences": differences}


if __name__ == "__main__":
    sys.exit(main())
