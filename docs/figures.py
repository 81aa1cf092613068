"""Fills the tables of README.md from result files, so that no figure there can drift from what was measured.

``python -m docs.figures`` rewrites each block between ``<!-- figures:NAME -->`` and ``<!-- /figures -->``;
``--check`` only says whether one would change (exit code 1). A block whose result file is absent says so.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from docs.acceptance_table import predicted_acceptance
from docs.bench_tables import every_load, headline
from docs.drill_table import drills
from docs.peer_tables import peers
from docs.router_table import router_cost
from docs.words import Document, conditions, listed, times
from pipelines.bench.document import FORMAT

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path("docs/results")
PAIR = Path("engines/demo_pair/evaluation.json")

_BLOCK = re.compile(r"(<!-- figures:([a-z-]+) -->\n).*?(<!-- /figures -->)", re.DOTALL)


def render(readme: str, root: Path = ROOT) -> str:
    """README's text with every block made anew.

    Args:
        readme: The text; blocks of unknown name raise KeyError.
        root: Where the result files lie.
    """
    return _BLOCK.sub(lambda found: f"{found[1]}{_block(found[2], root)}\n{found[3]}", readme)


def _block(name: str, root: Path) -> str:
    path, command, write = BLOCKS[name]
    try:
        document = json.loads((root / path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"*Not measured yet: `{path.as_posix()}` is made by `{command}`.*"
    if path.name.startswith("bench-") and document.get("format") != FORMAT:
        return f"*Not measured yet with this bench: `{path.as_posix()}` is made anew by `{command}`.*"
    return write(document)


def _demo(demo: Document) -> str:
    ways = {"grpc": "gRPC, streamed", "http": "HTTP, whole answers"}
    seconds = demo["seconds"]
    lines = [
        "`make demo` ends with this table and the verdict:",
        "",
        "| Over | Model | TTFT, ms | ITL, ms | End-to-end, s | Tokens/s | `acceptance_rate` "
        "| `mean_acceptance_length` | Speed-up |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for entry in demo["figures"]:
        cells = [
            ways[entry["transport"]],
            entry["model"],
            times(entry["ttft_s"], 1e3, 0),
            times(entry["itl_s"], 1e3, 1),
            times(entry["e2e_latency_s"], 1, 2),
            times(entry["output_tokens_per_s"], 1, 1),
            times(entry["acceptance_rate"], 1, 2),
            times(entry["mean_acceptance_length"], 1, 2),
            times(entry["speed_up"], 1, 2),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    verdict = "PASS" if demo["verdict"] == "pass" else "**FAIL**"
    lines += [
        "",
        f"{verdict}: {demo['answers_compared']} answers, {demo['tokens_compared']:,} tokens, "
        f"{demo['accepted_draft_tokens']:,} of them accepted draft tokens; "
        f"{len(demo['answers_that_differ'])} answers differ from the target's own. Times: greedy, "
        f"one request at a time; {seconds['build']:.0f} s to build, {seconds['start']:.0f} s to start, "
        f"{seconds['answers']:.0f} s of answers.",
        "",
        conditions(demo["conditions"]),
    ]
    return "\n".join(lines)


def _verify(report: Document) -> str:
    sections = {section["title"]: section["figures"] for section in report["sections"]}
    equality = sections["Equality with the target alone"]
    passes = sections["Passes"]["passes"]
    asked = [entry for entry in passes if entry["model"] == "generate"]
    numbers = {entry["num_draft_tokens"] for entry in asked} - {None}
    # Files older than the adaptive draft length have only numbers.
    others = {entry["draft_length"] for entry in asked if entry["num_draft_tokens"] is None}
    lengths = _lengths(sorted(numbers), sorted(others))
    loads = sorted({entry["requests_at_once"] for entry in asked})
    verdict = {"pass": "Passed", "fail": "**Failed**", "inconclusive": "**Inconclusive**"}[report["verdict"]]
    differ = f"{equality['answers_that_differ']} answers differ"
    if equality["answers_that_differ"]:
        differ = f"**{differ}**"
    lines = [
        f"{verdict}: {equality['answers_compared']:,} answers and {equality['tokens_compared']:,} tokens "
        f"compared with the target alone, {differ}, {equality['answers_missing']} missing; "
        f"`num_draft_tokens` {lengths}, {listed(loads)} requests at once, {len(asked)} passes.",
        "",
        "| Compared | Prompts | Answers | Tokens | With log probs | Prompts that diverged | A fault is seen "
        "with 95 % if it changes | with 99 % |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for group in equality["groups"]:
        counts = ("prompts", "answers", "tokens", "tokens_with_log_probs", "prompts_that_diverged")
        cells = [group["name"], *(f"{group[count]:,}" for count in counts)]
        cells += [f"{group[rate]:.2%} of prompts" for rate in ("detectable_rate_95", "detectable_rate_99")]
        lines.append("| " + " | ".join(cells) + " |")
    for section in report["sections"]:
        if section["verdict"] in ("fail", "inconclusive"):
            lines += ["", f"{section['title']}: {section['verdict']}: {section['summary']}"]
    lines += _acceptance(sections["Acceptance of seeded sampling, coupled and uncoupled"])
    return "\n".join([*lines, "", conditions(report["conditions"])])


def _law(report: Document) -> str:
    lines = [
        f"- {section['title']}: **{section['verdict']}**: {section['summary']}"
        for section in report["sections"]
    ]
    return "\n".join([*lines, "", conditions(report["conditions"])])


def _acceptance(figures: Document) -> list[str]:
    if not figures.get("arms"):
        return []
    lines = [
        "",
        f"Acceptance at temperature {figures['temperature']}, same prompts and seeds, as `acceptance_rate` "
        "(`mean_acceptance_length`):",
        "",
        "| `num_draft_tokens` | coupled: shared noise | uncoupled: own noise, ratio rule |",
        "|---|---|---|",
    ]
    cells: dict[int, dict[str, str]] = {}
    for arm in figures["arms"]:
        rate, length = times(arm["acceptance_rate"], 1, 3), times(arm["mean_acceptance_length"], 1, 2)
        counts = f"{arm['total_accepted_draft_tokens']:,} of {arm['total_draft_tokens']:,}"
        cells.setdefault(arm["num_draft_tokens"], {})[arm["sampling"]] = f"{rate} ({length}), {counts}"
    for draft_length, rules in cells.items():
        lines.append(f"| {draft_length} | {rules['coupled']} | {rules['uncoupled']} |")
    return lines


def _lengths(numbers: Sequence[int], others: Sequence[str]) -> str:
    whole = len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[-1] + 1))
    return listed([*([f"{numbers[0]} to {numbers[-1]}"] if whole else numbers), *others])


def _pair(evaluation: Document) -> str:
    about = evaluation["conditions"]
    modes = {"greedy": "greedy", "sampled": f"temperature {about['temperature_of_sampled']}"}
    lines = ["| `num_draft_tokens` |", "|---|"]
    columns = []
    for mode, words in modes.items():
        figures = evaluation[mode]
        lines[0] += f" {words} | {words}, the {figures['outputs_without_loop']} outputs without a loop |"
        lines[1] += "---|---|"
        columns += [figures["all_outputs"], figures.get("outputs_without_loop_only", {})]
    for count in evaluation["greedy"]["all_outputs"]:
        cells = []
        for column in columns:
            cell = column.get(count)
            cells.append(
                f"{cell['acceptance_rate']:.2f} ({cell['mean_acceptance_length']:.2f})" if cell else "-"
            )
        lines.append(f"| {count} | {' | '.join(cells)} |")
    loops = {mode: f"{evaluation[mode]['loop_share_of_tokens']:.0%}" for mode in modes}
    lines += [
        "",
        f"`acceptance_rate` (`mean_acceptance_length`) on {about['prompts']} held-out prompts of "
        f"{about['prompt_tokens']} tokens, {about['new_tokens']} new tokens each; {about['coupling']}. "
        f"{loops['greedy']} of the greedy and {loops['sampled']} of the sampled tokens lie in an exact "
        f"repetition. Simulated on the trained pair, neither grown nor INT8: weights {about['weights']}; "
        f"{about['processor']}, torch {about['torch']}, {about['date'][:10]}. More in "
        "[engines/demo_pair](engines/demo_pair/README.md).",
    ]
    return "\n".join(lines)


def _sampler(document: Document) -> str:
    costs, about = document["sampler"], document["conditions"]
    sizes = sorted({cost["num_rows"] for cost in costs})
    lines = [
        "| Choosing tokens |" + "".join(f" {size} rows |" for size in sizes),
        "|---|" + "---|" * len(sizes),
    ]
    for setting in dict.fromkeys(cost["setting"] for cost in costs):
        cells = [
            f"{cost['sampler_ms']:.2f} ms beside a step of {cost['step_ms']:.1f} ms: {cost['share']:.1%}"
            for size in sizes
            for cost in costs
            if (cost["setting"], cost["num_rows"]) == (setting, size)
        ]
        lines.append(f"| {setting} | {' | '.join(cells)} |")
    engine = about["engines"]["target"]
    lines += [
        "",
        f"Steps of 8 requests on the target of {engine['num_parameters'] / 1e6:.1f} M parameters, plain and "
        "with 4 draft tokens each, every row turned into a token; step and sampler timed in turn, medians. "
        f"{about['cpu']}, {about['num_cores']} cores, load {about['load_average_1min']} at the start; "
        f"{about['date'][:10]}, commit {about['git_sha'][:10]}, `{about['command']}`.",
    ]
    return "\n".join(lines)


BLOCKS: dict[str, tuple[Path, str, Callable[[Document], str]]] = {
    "headline": (RESULTS / "bench-demo-large.json", "make results", headline),
    "every-load": (RESULTS / "bench-demo-large.json", "make results", every_load),
    "sampled": (RESULTS / "bench-demo-large-sampled.json", "make results", headline),
    "peers": (RESULTS / "peers-demo-large.json", "make results", peers),
    "demo": (RESULTS / "demo.json", "make results", _demo),
    "verify": (RESULTS / "verify-demo.json", "make results", _verify),
    "law": (RESULTS / "law-demo.json", "make results", _law),
    "sampler": (RESULTS / "sampler-demo-large.json", "make results", _sampler),
    "acceptance": (RESULTS / "acceptance-demo.json", "make results", predicted_acceptance),
    "router": (RESULTS / "router-demo-large.json", "make results", router_cost),
    "drills": (RESULTS / "canary-drills.json", "make drills", drills),
    "pair": (PAIR, "make evaluate-demo", _pair),
}
"""Block name -> result file, the command that makes it, and what turns it into text."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; 1 with ``--check`` if README is out of date."""
    parser = argparse.ArgumentParser(prog="python -m docs.figures", description="Fill README's tables.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if something would change")
    options = parser.parse_args(arguments)
    path = ROOT / "README.md"
    before = path.read_text(encoding="utf-8")
    after = render(before)
    if before == after:
        print("README.md is up to date")
        return 0
    if options.check:
        print("README.md differs from the result files; run: make figures", file=sys.stderr)
        return 1
    path.write_text(after, encoding="utf-8")
    print("README.md written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
