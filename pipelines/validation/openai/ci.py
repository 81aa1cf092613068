"""Write the report of a comparison in forms that CI reads: JUnit, SARIF and a summary of GitHub's step."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from pipelines.atomic_file import write_whole
from pipelines.errors import InvalidRequestError

Report = Mapping[str, Any]
"""The report as ``as_document`` makes it."""

_SUMMARY = "GITHUB_STEP_SUMMARY"
_NOT_IN_XML = re.compile(r"[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LEVELS = {"fault": "error", "non-tie": "error", "unknown": "warning", "tie": "note"}
_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"


def junit(report: Report) -> str:
    """Return a JUnit file: a test case for each kind of questions, and one for the verdict."""
    verdict, compared, _, rest, *_ = report["sections"]
    kinds = compared["figures"]["kinds"]
    suite = ElementTree.Element("testsuite", name="draftproof verify")
    case = ElementTree.SubElement(suite, "testcase", classname="draftproof.verify", name="verdict")
    if report["verdict"] != "pass":
        ElementTree.SubElement(case, "failure", message=verdict["summary"], type=report["verdict"])
    found = _suspect(report)
    for row in kinds:
        case = ElementTree.SubElement(suite, "testcase", classname="draftproof.verify", name=row["kind"])
        if of_kind := [each for each in found if each["kind"] == row["kind"]]:
            message = f"{len(of_kind)} differences in {row['questions']} questions"
            failure = ElementTree.SubElement(case, "failure", message=message, type="difference")
            failure.text = "\n\n".join(f"{_line(each)}\n{each['curl']}" for each in of_kind)
    for note in rest["figures"]["not_checked"]:
        name = note.partition(":")[0]
        case = ElementTree.SubElement(suite, "testcase", classname="draftproof.verify", name=name)
        ElementTree.SubElement(case, "skipped", message=note)
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    ElementTree.indent(suite)
    text = ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)
    return _NOT_IN_XML.sub("?", text)  # a server may send anything


def sarif(report: Report) -> str:
    """Return a SARIF file: each kind of questions is a rule, and each difference a result."""
    kinds = {
        row["kind"]: f"verify/{row['kind'].replace(' ', '-')}"
        for row in report["sections"][1]["figures"]["kinds"]
    }
    place = {
        "physicalLocation": {"artifactLocation": {"uri": "draftproof-verify"}, "region": {"startLine": 1}}
    }
    results = [
        {
            "ruleId": kinds[each["kind"]],
            "level": _LEVELS[each["class"]],
            "message": {"text": f"{_line(each)}\n{each['curl']}"},
            "locations": [place],
        }
        for each in report["sections"][0]["figures"]["differences"]
    ]
    rules = [{"id": rule, "shortDescription": {"text": f"{kind} differ"}} for kind, rule in kinds.items()]
    tool = {"driver": {"name": "draftproof verify", "rules": rules}}
    return json.dumps({"$schema": _SARIF, "version": "2.1.0", "runs": [{"tool": tool, "results": results}]})


def summary(report: Report) -> str:
    """Return the verdict, the counts and an example in Markdown."""
    verdict, compared, *_ = report["sections"]
    rows = compared["figures"]["kinds"]
    lines = [f"## draftproof verify: {report['verdict']}", "", verdict["summary"], ""]
    if rows:
        lines += [f"| {' | '.join(rows[0])} |", "|---" * len(rows[0]) + "|"]
        lines += [f"| {' | '.join(map(str, row.values()))} |" for row in rows]
    if found := verdict["figures"]["differences"][:1]:
        lines += ["", _line(found[0]), "", "```bash", found[0]["curl"], "```"]
    return "\n".join([*lines, ""])


def _suspect(report: Report) -> list[Any]:
    return [each for each in report["sections"][0]["figures"]["differences"] if each["class"] != "tie"]


def _line(found: Mapping[str, Any]) -> str:
    where = f"{found['prompt']}, {found['asked']}, {found['position']}"
    return f"{where}: the control has {found['control']}, the candidate {found['candidate']}"


_FORMS: Mapping[str, Callable[[Report], str]] = {"junit": junit, "sarif": sarif}


def add_file_options(parser: argparse.ArgumentParser) -> None:
    """Add an option for each form of file, and what fails a job."""
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write the report as JUnit XML")
    parser.add_argument("--sarif", type=Path, metavar="FILE", help="write the differences as SARIF")
    parser.add_argument(
        "--fail-on",
        choices=("inconclusive", "fail"),
        default="inconclusive",
        help="inconclusive (default): only a pass is exit code 0; fail: an inconclusive verdict is, too",
    )


def write_files(report: Report, options: argparse.Namespace) -> None:
    """Write the files that were asked for, and the summary of a step of GitHub's.

    Raises:
        InvalidRequestError: A file cannot be written.
    """
    try:
        for name, form in _FORMS.items():
            if file := getattr(options, name):
                write_whole(file, form(report))
        if step_file := os.environ.get(_SUMMARY):
            with Path(step_file).open("a", encoding="utf-8") as step:
                step.write(summary(report))
    except OSError as error:
        raise InvalidRequestError(
            f"the report cannot be written: {error.filename}: {error.strerror}", "name another file"
        ) from None
