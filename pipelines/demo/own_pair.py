"""Try a pair of your own: ``draftproof try TARGET DRAFT``, directories or ids of the Hugging Face hub.

The command checks that the two form a pair, plans the memory, downloads what is on the hub, writes a recipe,
and then does what ``draftproof demo`` does: it compiles engines, starts a server, sends prompts to both
models, compares the answers and prints acceptance and speed. Exit codes are those of ``draftproof demo``.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pipelines.building import run_build
from pipelines.command_line.options import add_prompts_option, whole_number
from pipelines.command_line.prompt_files import read_prompts
from pipelines.demo.__main__ import main as demonstrate
from pipelines.program import EXIT_PASS, run_program

_HUB = "hf://"
_GGUF = ".gguf"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(:[\w.+/-]+)?(@[\w./-]+)?")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parser().parse_args(arguments)
    recipe = ""

    def write_recipe() -> int:
        nonlocal recipe
        if options.prompts is not None:
            read_prompts(options.prompts)  # a mistake shows before anything is downloaded
        checkpoints = named_checkpoint(options.target), named_checkpoint(options.draft)
        names = [options.name] if options.name else map(_last_name, checkpoints)
        output = (options.output or Path("-".join(names) + ".yaml")).resolve()
        given = [*checkpoints, "--output", str(output)]
        given += ["--quantization", options.quantization]
        given += ["--name", options.name] if options.name else []
        given += ["--max-seq-len", str(options.max_seq_len)] if options.max_seq_len else []
        given += [] if options.prompts is None else ["--prompts", str(options.prompts.resolve())]
        result = run_build("build.own_pair", given, partial(print, flush=True))
        recipe = str(result["recipe"])
        print(f"recipe: {recipe}; to serve it: draftproof serve --recipe {recipe}", flush=True)
        return EXIT_PASS

    failed = run_program(write_recipe, result={"verdict": "fail"} if options.json else None)
    return failed or demonstrate(["--recipe", recipe, *(["--json"] if options.json else [])])


def named_checkpoint(text: str) -> str:
    """Return a checkpoint as a recipe names it: an absolute path, or ``hf://ORGANIZATION/NAME@REVISION``.

    ``ORGANIZATION/NAME`` is an id of the hub unless there is a directory ``ORGANIZATION``, or NAME is that
    of a GGUF file: then it is a path.
    """
    if text.startswith(_HUB):
        return text
    is_file = text.endswith(_GGUF) and ":" not in text
    if _HUB_ID.fullmatch(text) and not is_file and not Path(text.partition("/")[0]).exists():
        return f"{_HUB}{text}"
    return str(Path(text).resolve())


def _last_name(checkpoint: str) -> str:
    is_on_hub = checkpoint.startswith(_HUB)
    name = Path(checkpoint.partition("@")[0] if is_on_hub else checkpoint).name
    return name.removesuffix(_GGUF).replace(":", "-")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="draftproof try", description="Serve and check a pair of your own.")
    parser.add_argument(
        "target",
        help="checkpoint of the target: a directory, a GGUF file, or ORGANIZATION/NAME[:FILE][@REVISION]",
    )
    parser.add_argument("draft", help="checkpoint of the draft, likewise")
    parser.add_argument(
        "--name", help="name of the recipe and of the served model (default: a short one of the target's)"
    )
    parser.add_argument(
        "--output", type=Path, help="recipe to write (default: NAME.yaml, without --name TARGET-DRAFT.yaml)"
    )
    parser.add_argument(
        "--quantization",
        choices=("auto", "int8", "int4", "none", "checkpoint"),
        default="auto",
        help="of the target; auto: the bits that its weights were published in, unchanged if at most 8, "
        "else int8 (default: %(default)s)",
    )
    parser.add_argument(
        "--max-seq-len", type=whole_number(64), help="tokens (default: what models and memory allow)"
    )
    add_prompts_option(parser)
    parser.add_argument("--json", action="store_true", help="print the result as the last line, JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
