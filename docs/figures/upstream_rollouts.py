"""The table of rollouts between two servers of vLLM: how each ended, and what was compared."""

from __future__ import annotations

from docs.figures.words import Document


def upstream_rollouts(document: Document) -> str:
    """Return one line per candidate, and the conditions."""
    lines = [
        "| Candidate | Ended | Decided in | Why | Requests (to the candidate) "
        "| Replays that differ: candidate | stable server itself | Failed for clients | Seconds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for rollout in document["rollouts"]:
        cells = [
            rollout["candidate"],
            rollout["ended"].replace("_", " "),
            rollout["decided_in"],
            rollout["reason"].partition("; not judged")[0],
            f"{rollout['num_requests']:,} ({rollout['by_arm'].get('candidate', 0):,})",
            *(
                f"{rollout['differing'].get(arm, 0):,} of {rollout['compared'].get(arm, 0):,}"
                for arm in ("candidate", "stable")
            ),
            str(sum(number for status, number in rollout["statuses"].items() if status != "200")),
            str(rollout["seconds"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    about = document["conditions"]
    lines += [
        "",
        f"Conditions: vLLM {about['vllm']} on {about['cpu']}, {about['num_cores']} cores, load "
        f"{about['load_average_1min']} at the start; {about['date'][:10]}, commit {about['git_sha'][:10]}, "
        f"`{about['command']}`.",
    ]
    return "\n".join(lines)
