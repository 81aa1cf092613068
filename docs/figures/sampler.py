"""The table of the measurements of ``benchmarks.sampler_cost``."""

from __future__ import annotations

from docs.figures.words import Document


def sampler(document: Document) -> str:
    """Return one line for each way to choose tokens."""
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
