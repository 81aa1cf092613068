"""``draftproof verify`` for OpenAI-compatible servers of any kind, in three forms.

``--against URL --control URL`` compares two servers. ``--control URL --record FILE`` keeps the control's
answers, and ``--against URL --baseline FILE`` compares a server with them. Exit codes and reports are those
of the proof of our own servers.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pipelines.bench.reporting.rates import prompts_needed
from pipelines.bench.reporting.section import Section
from pipelines.command_line.general_prompts import given_prompts
from pipelines.command_line.options import add_prompts_option, whole_number
from pipelines.errors import InvalidRequestError
from pipelines.program import EXIT_INCONCLUSIVE, EXIT_PASS, run_program
from pipelines.validation.audit import CONFIDENCE, NON_TIE_LIMIT
from pipelines.validation.distribution.drawing import NUM_PROMPTS
from pipelines.validation.openai.baseline import Baseline, Settings, read_baseline, write_baseline
from pipelines.validation.openai.ci import add_file_options, write_files
from pipelines.validation.openai.runs import Run
from pipelines.validation.openai.server.endpoint import (
    CANDIDATE_KEY,
    CONTROL_KEY,
    Endpoint,
    read_key,
)
from pipelines.validation.report import add_report_options, as_document, show
from pipelines.validation.size import Size, add_size_options
from pipelines.validation.stopping import stopped_early

_PAGE = Path(".run/verify.html")
_SERVERS = ("against", "control", "baseline", "record")
_FORMS = "--against and --control, --against and --baseline, or --control and --record"
_OF_CANDIDATE = ("model", "key_file", "fields", "expect", "html", "junit", "sarif")
_OF_SIZE = ("num_prompts", "max_tokens", "num_at_once", "num_sampled")
_OF_CONTROL = ("control_model", "control_key_file", "control_fields", "prompts", *_OF_SIZE)


def is_asked_for(arguments: Sequence[str]) -> bool:
    """Return whether a command line of ``draftproof verify`` has one of these forms."""
    named = {each.partition("=")[0].removeprefix("--") for each in arguments if each.startswith("--")}
    return not named.isdisjoint(_SERVERS)


def main(command_line: Sequence[str]) -> int:
    """Run the command line; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(command_line)
    size = Size.of(options)
    if options.baseline and not options.quick:  # it has its own size, so only a time that is named ends it
        size = replace(size, minutes=options.minutes)
    try:
        _check_form(options)
        work = _work(options)
    except InvalidRequestError as error:
        parser.error(str(error))
    with stopped_early(size.minutes) as ends_at_s:
        run = Run(command_line, options.timeout_s, options.expect or "audit", size, ends_at_s)
        result = {"verdict": "inconclusive"} if options.json else None
        return run_program(lambda: work(run), result, EXIT_INCONCLUSIVE)


def _work(options: argparse.Namespace) -> Callable[[Run], int]:
    """Read everything that the command line names, and return what is left to do."""
    show_report = partial(_show, options)
    if options.baseline:
        baseline, digest = read_baseline(options.baseline)
        candidate = _candidate(options)
        return lambda run: show_report(*run.compare_with_baseline(baseline, digest, candidate))
    given = {name: getattr(options, name) for name in _OF_SIZE}
    settings = Settings(**{name: value for name, value in given.items() if value is not None})
    prompts, control = given_prompts(options.prompts).draw(settings.num_prompts), _control(options)
    if options.record:
        return lambda run: _record(run.record_control(control, prompts, settings), options)
    candidate = _candidate(options)
    return lambda run: show_report(*run.compare_servers(control, candidate, prompts, settings))


def _show(options: argparse.Namespace, sections: Sequence[Section], about: dict[str, Any]) -> int:
    code = show(sections, about, options.html or _PAGE, as_json=options.json)
    write_files(as_document(sections, about), options)
    return EXIT_PASS if code == EXIT_INCONCLUSIVE and options.fail_on == "fail" else code


def _record(baseline: Baseline, options: argparse.Namespace) -> int:
    digest = write_baseline(options.record, baseline)
    document = {
        "baseline": str(options.record),
        "sha256": digest,
        "control": baseline.control,
        "questions": len(baseline.answers.questions),
        "failures": dict(baseline.failures),
        "not_checked": list(baseline.not_checked),
    }
    num_plain, needed = baseline.settings.num_prompts, prompts_needed(NON_TIE_LIMIT, CONFIDENCE)
    if num_plain < needed:
        print(
            f"too small to pass: {num_plain} plain answers, and {needed} are needed (--num-prompts {needed})"
        )
    for note in baseline.not_checked:
        print(f"not checked: {note}")
    print(f"wrote {document['questions']} answers of {baseline.control} to {options.record}")
    if options.json:
        print(json.dumps(document))
    return EXIT_PASS


def _check_form(options: argparse.Namespace) -> None:
    """Refuse servers, files and options that do not belong together."""
    given = {name for name in _SERVERS if getattr(options, name)}
    if given not in ({"against", "control"}, {"against", "baseline"}, {"control", "record"}):
        raise _unfit(" and ".join(f"--{name}" for name in sorted(given)), _FORMS)
    for server, names in (("against", _OF_CANDIDATE), ("control", _OF_CONTROL)):
        useless = [name for name in names if getattr(options, name) is not None]
        if server not in given and useless:
            raise _unfit(f"--{useless[0].replace('_', '-')}", f"only with --{server}")


def _unfit(given: str, rule: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"the options do not belong together; {given}; {rule}", "add or remove options"
    )


def _candidate(options: argparse.Namespace) -> Endpoint:
    key = read_key(options.key_file, CANDIDATE_KEY)
    return Endpoint.of(options.against, options.model or "", key, options.fields or {})


def _control(options: argparse.Namespace) -> Endpoint:
    key = read_key(options.control_key_file, CONTROL_KEY)
    return Endpoint.of(options.control, options.control_model or "", key, options.control_fields or {})


def _parser() -> argparse.ArgumentParser:
    default = Settings()
    parser = argparse.ArgumentParser(
        prog="draftproof verify",
        allow_abbrev=False,  # --key would be --key-file, whose argument an error quotes
        description="Compare an OpenAI-compatible server with another one, or with a baseline of it.",
        epilog=f"API keys are read from files or from {CANDIDATE_KEY} and {CONTROL_KEY}.",
    )
    parser.add_argument("--against", metavar="URL", help="server to judge, such as one with speculation")
    parser.add_argument("--control", metavar="URL", help="server without speculation; may be the same")
    parser.add_argument("--baseline", type=Path, metavar="FILE", help="recorded answers instead of --control")
    parser.add_argument("--record", type=Path, metavar="FILE", help="record the control's answers into FILE")
    for prefix, server in (("", "--against"), ("control-", "--control")):
        parser.add_argument(f"--{prefix}model", help=f"model of {server} (default: the only one)")
        parser.add_argument(f"--{prefix}key-file", type=Path, help=f"file with the API key of {server}")
        parser.add_argument(
            f"--{prefix}fields",
            type=_fields,
            metavar="JSON",
            help=f"fields of each request to {server}, such as a switch of speculation",
        )
    add_prompts_option(parser)
    add_size_options(parser, 1)
    parser.add_argument(
        "--num-at-once",
        type=whole_number(2),
        help=f"concurrent requests of the load ({default.num_at_once})",
    )
    parser.add_argument(
        "--sampled",
        dest="num_sampled",
        type=whole_number(0),
        metavar="N",
        help=f"also compare N sampled answers to each of {NUM_PROMPTS} prompts, such as 1000",
    )
    parser.add_argument(
        "--timeout-s",
        type=float,
        help="longest silence of a server (default: the candidate's is five times the control's slowest "
        "answer, at least 30 s)",
    )
    parser.add_argument(
        "--expect",
        choices=("audit", "exact"),
        help="audit (default): distinguish ties from faults; exact: require equality",
    )
    add_report_options(parser, str(_PAGE))
    add_file_options(parser)
    return parser


def _fields(text: str) -> dict[str, object]:
    with suppress(ValueError, RecursionError):
        fields = json.loads(text)
        if isinstance(fields, dict):
            return fields
    raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object")
