"""Try drafts for a target of your own: ``draftproof try TARGET [DRAFT...]``, directories or ids of the hub.

The command checks that target and draft form a pair, plans the memory, downloads what is on the hub, writes a
recipe, and then does what ``draftproof demo`` does: it compiles engines, starts a server, sends prompts to
both models, compares the answers and prints acceptance and speed. With several drafts it does so with each
of them, and without any, where tokens are only looked up; it prints a table and writes the recipe of the
fastest.
Exit codes are those of ``draftproof demo``.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipelines.atomic_file import write_whole
from pipelines.building import run_build
from pipelines.command_line.options import add_prompts_option, whole_number
from pipelines.command_line.prompt_files import read_prompts
from pipelines.demo.__main__ import demonstrate
from pipelines.demo.__main__ import main as demonstrate_one
from pipelines.demo.trials import Trial, fastest, table
from pipelines.errors import DraftproofError, RecipeError
from pipelines.program import EXIT_CODES, EXIT_PASS, ProgramFailedError, run_program

_HUB = "hf://"
_GGUF = ".gguf"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(:[\w.+/-]+)?(@[\w./-]+)?")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parser().parse_args(arguments)
    recipe = ""

    def work() -> int:
        nonlocal recipe
        if options.prompts is not None:
            read_prompts(options.prompts)  # a mistake shows before anything is downloaded
        checkpoints = list(map(named_checkpoint, (options.target, *options.drafts)))
        is_pair = len(checkpoints) == 2
        name = options.name or "-".join(map(_last_name, checkpoints if is_pair else checkpoints[:1]))
        output = (options.output or Path(f"{name}.yaml")).resolve()
        if not is_pair:
            return _try_all(options, checkpoints, output)
        recipe = str(_write_recipe(options, checkpoints, output)["recipe"])
        _say_recipe(recipe)
        return EXIT_PASS

    failed = run_program(work, result={"verdict": "fail"} if options.json else None)
    if failed or not recipe:
        return failed
    return demonstrate_one(["--recipe", recipe, *(["--json"] if options.json else [])])


def _write_recipe(options: argparse.Namespace, checkpoints: Sequence[str], output: Path) -> dict[str, Any]:
    """Write the recipe of a target and, if a second checkpoint is named, its draft."""
    given = [*checkpoints, "--output", str(output)]
    given += ["--quantization", options.quantization]
    given += ["--name", options.name] if options.name else []
    given += ["--max-seq-len", str(options.max_seq_len)] if options.max_seq_len else []
    given += [] if options.prompts is None else ["--prompts", str(options.prompts.resolve())]
    return run_build("build.own_pair", given, _say)


def _try_all(options: argparse.Namespace, checkpoints: Sequence[str], output: Path) -> int:
    """Try a target without a draft and with each, and write the recipe of the fastest."""
    if output.exists():
        raise RecipeError(
            f"{output} exists, and the recipe of the fastest draft is written there",
            "name another file with --output, or remove it",
        )
    target, *drafts = checkpoints
    trials: list[Trial] = []
    with TemporaryDirectory(prefix="draftproof-try-") as folder:
        file = Path(folder) / "0.yaml"
        written = _write_recipe(options, [target], file)
        trials.append(Trial("no draft", file, demonstrate(str(file))))
        for number, draft in enumerate(drafts, start=1):
            name, file = _last_name(draft), Path(folder) / f"{number}.yaml"
            if any(each.name == name for each in trials):
                name = f"{name} ({number})"
            _say(f"\nDraft {number} of {len(drafts)}: {name}")
            try:
                _write_recipe(options, [target, draft], file)
                trials.append(Trial(name, file, demonstrate(str(file))))
            except DraftproofError as error:  # the others may be of use
                said = "" if isinstance(error, ProgramFailedError) else f": {error}"
                _say(f"{name} cannot be used and is left out{said}")
        best = fastest([each for each in trials if not each.is_wrong] or trials[:1])
        write_whole(output, best.recipe.read_text(encoding="utf-8"))
    _say(f"\n{table(trials)}\n")
    if not drafts:
        _say("\n".join(written["advice"]))
    wrong = [each for each in trials if each.is_wrong]
    for each in wrong:
        _say(f"{each.name}: {each.shown.closing}")
    verdict = "fail" if wrong else "pass"
    of_all = f", the fastest of {len(trials)}" if drafts else ""
    _say(f"{verdict.upper()}: {best.name} makes {best.gain:.2f} times the target alone{of_all}")
    _say_recipe(str(output))
    if options.json:
        tried = {each.name: each.shown.document for each in trials}
        print(json.dumps({"verdict": verdict, "fastest": best.name, "recipe": str(output), "tried": tried}))
    return EXIT_CODES[verdict]


_say = partial(print, flush=True)


def _say_recipe(recipe: str) -> None:
    _say(f"recipe: {recipe}; to serve it: draftproof serve --recipe {recipe}")


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
    parser = argparse.ArgumentParser(prog="draftproof try", description="Serve and check drafts of your own.")
    parser.add_argument(
        "target",
        help="checkpoint of the target: a directory, a GGUF file, or ORGANIZATION/NAME[:FILE][@REVISION]",
    )
    parser.add_argument(
        "drafts",
        nargs="*",
        metavar="draft",
        help="checkpoint of a draft, likewise; of several, the recipe gets the fastest, and without any it "
        "has none: tokens are looked up in the request's own text",
    )
    parser.add_argument(
        "--name", help="name of the recipe and of the served model (default: a short one of the target's)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="recipe to write (default: NAME.yaml; without --name TARGET-DRAFT.yaml, or TARGET.yaml if there "
        "is not one draft)",
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
