"""The tables of ``benchmarks.placement``."""

from __future__ import annotations

from docs.figures.words import Document, conditions

_STATISTICS = ("p50", "mean", "p99")


def placement(document: Document) -> str:
    """Return one line for each way to choose servers."""
    lines = [
        "| Servers chosen | Prompt tokens found in a cache | TTFT, ms: median | mean | 99 % "
        "| Beside by prefix and load: median | mean | 99 % |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for choice in document["choices"]:
        times = [f"{1e3 * choice['ttft_s'][which]:.0f}" for which in _STATISTICS]
        ratios = ["", "", ""]
        if choice["choice"] != document["choices"][0]["choice"]:
            ratios = [_times(choice["beside"][which]) for which in _STATISTICS]
        cells = [choice["choice"], f"{choice['found_share']:.0%}", *times, *ratios]
        lines.append(f"| {' | '.join(cells)} |")
    num_measured = document["rounds"] * document["num_requests"]
    lines += [
        "",
        f"{document['num_servers']} servers with one thread and a cache of {document['cache_tokens']:,} "
        f"tokens each; prompts begin with one of {document['num_texts']} texts of "
        f"{document['text_tokens']} tokens or a few more, some more popular than others, and at most "
        f"{document['question_tokens']} tokens follow; {document['max_tokens']} output tokens; "
        f"{document['requests_per_s']:g} requests/s for all servers together, which arrive independently. "
        f"{num_measured} requests of each choice in {document['rounds']} rounds, after "
        f"{document['num_warm_up']} in each that warm the caches; all choices get the same requests at the "
        "same times. Ratios are of geometric means over the rounds, with 95 % intervals of randomised "
        "blocks.",
        "",
        conditions(document["conditions"]),
    ]
    return "\n".join(lines)


def looks(document: Document) -> str:
    """Return one line for each number of connections that look."""
    lines = [
        "| Looks per second | CPU time of each look, µs: gateway | Triton and models | front door |",
        "|---|---|---|---|",
    ]
    for each in document["looks"]:
        cells = [_interval(each[f"{part}_us"]) for part in ("gateway", "models", "front_door")]
        lines.append(f"| {each['looks_per_s']:.0f} | {' | '.join(cells)} |")
    lines += [
        "",
        f"Medians of {document['pairs']} pairs of {document['phase_s']:g} s with looks and as long without, "
        "with 95 % bootstrap intervals.",
        "",
        conditions(document["conditions"]),
    ]
    return "\n".join(lines)


def _times(ratio: Document) -> str:
    return f"{ratio['value']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"


def _interval(found: Document) -> str:
    return f"{found['value']:.0f} ({found['low']:.0f} to {found['high']:.0f})"
