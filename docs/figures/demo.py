"""The table of ``make demo`` and its verdict."""

from __future__ import annotations

from docs.figures.words import Document, conditions, times


def demo(run: Document) -> str:
    """Return one line for each model and transport, and the verdict."""
    ways = {"grpc": "gRPC, streamed", "http": "HTTP, whole answers"}
    seconds = run["seconds"]
    lines = [
        "| Over | Model | TTFT, ms | ITL, ms | End-to-end, s | Tokens/s | `acceptance_rate` "
        "| `mean_acceptance_length` | Speed-up |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for entry in run["figures"]:
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
    verdict = "PASS" if run["verdict"] == "pass" else "**FAIL**"
    lines += [
        "",
        f"{verdict}: {run['answers_compared']} answers, {run['tokens_compared']:,} tokens, "
        f"{run['accepted_draft_tokens']:,} of them accepted draft tokens; "
        f"{len(run['answers_that_differ'])} answers differ from the target's own. Times: greedy, "
        f"one request at a time; {seconds['build']:.0f} s to build, {seconds['start']:.0f} s to start, "
        f"{seconds['answers']:.0f} s of answers.",
        "",
        conditions(run["conditions"]),
    ]
    return "\n".join(lines)
