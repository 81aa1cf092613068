"""The tables of ``benchmarks.fleet_simulation``."""

from __future__ import annotations

from docs.figures.words import Document, conditions


def fleet_simulation(document: Document) -> str:
    """Return what each way to choose servers gives, then what the death of servers costs."""
    fleets = document["fleets"]
    lines = [
        "| Servers, front doors | Servers chosen | Prefixes found in a cache | TTFT, ms: median | mean | "
        "99 % | Servers busy | Busiest server |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for fleet in fleets:
        size = f"{fleet['num_servers']:,}, {fleet['num_front_doors']}"
        for name, placed in fleet["placements"].items():
            times = " | ".join(f"{1e3 * placed[f'ttft_s_{which}']:.0f}" for which in ("p50", "mean", "p99"))
            lines.append(
                f"| {size} | {name} | {placed['hit_rate']:.0%} | {times} | {placed['busy_share']:.0%} | "
                f"{placed['busiest_share']:.0%} |"
            )
    lines += [
        "",
        "| Servers, front doors | Servers that die | Pause of their answers, s: median | worst | TTFT of "
        "others in the next 10 s, 99 % | CPU time of a front door to choose a server |",
        "|---|---|---|---|---|---|",
    ]
    for fleet in fleets:
        death = fleet["death"]
        lines.append(
            f"| {fleet['num_servers']:,}, {fleet['num_front_doors']} | {death['num_servers']} | "
            f"{death['pause_s_median']:.2f} | {death['pause_s_worst']:.2f} | "
            f"{1e3 * death['ttft_s_p99_after']:.0f} ms | {fleet['placement_us']:.0f} µs |"
        )
    one, times = fleets[0], document["times"]
    lines += [
        "",
        f"{one['requests_per_s']:g} request/s for each server; prompts begin with one of "
        f"{one['num_prefixes']} texts of {one['prefix_tokens']} tokens, some more popular than others, and "
        f"{one['own_tokens']} tokens follow; {one['mean_tokens']} output tokens on average. Figures of the "
        "second half of each run, whose caches are warm; busy shares of the whole run. Front doors notice a "
        f"death after {one['death']['noticed_after_s']:g} s. A server computes "
        f"{times['prompt_tokens_per_s']:.0f} tokens of prompts per second, gives "
        f"{times['tokens_per_s'][0]:.0f} output tokens per second to one request and "
        f"{times['tokens_per_s'][-1]:.0f} to {times['num_at_once'][-1]} together, and its cache holds "
        f"{times['cache_tokens']:,} tokens.",
        "",
        conditions(document["conditions"]),
    ]
    return "\n".join(lines)
