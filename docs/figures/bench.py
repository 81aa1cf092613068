"""The tables of ``make bench``: in-domain text at every closed load, and every text at every load."""

from __future__ import annotations

from docs.figures.words import Document, conditions, listed, times

_IN_DOMAIN = "code"


def headline(bench: Document) -> str:
    """Compare the adaptive draft length with the target alone, in domain, by concurrent requests."""
    cells = [
        cell
        for cell in bench["cells"]
        if cell["prompt_set"] == _IN_DOMAIN and cell["load"]["kind"] == "closed"
    ]
    lines = [
        "| Concurrent requests | Target alone, tokens/s | Speculative, tokens/s | Times faster | Best fixed "
        "`num_draft_tokens` | TTFT, ms | ITL, ms | `acceptance_rate` | `mean_acceptance_length` |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in cells:
        alone, adaptive = _arm(cell, "target alone"), _arm(cell, "adaptive")
        best = max(_fixed(cell), key=_ratio)
        row = [
            str(cell["load"]["num_at_once"]),
            f"{alone['output_tokens_per_s']['median']:.1f}",
            f"{adaptive['output_tokens_per_s']['median']:.1f}",
            f"**{_ratio(adaptive):.2f}** ({_interval(adaptive['ratio_to_target'])})",
            f"{best['num_draft_tokens']}: {_ratio(best):.2f}",
            f"{_ms(alone['ttft_s'], 0)} -> {_ms(adaptive['ttft_s'], 0)}",
            f"{_ms(alone['itl_s'], 1)} -> {_ms(adaptive['itl_s'], 1)}",
            times(adaptive["acceptance_rate"], 1, 2),
            times(adaptive["mean_acceptance_length"], 1, 2),
        ]
        lines.append("| " + " | ".join(row) + " |")
    slower = [cell["load"]["num_at_once"] for cell in cells if _ratio(_arm(cell, "adaptive")) < 1]
    temperature = bench["conditions"]["temperature"]
    lines += [
        "",
        f"{'Greedy' if temperature == 0 else f'Temperature {temperature:g}'}. Speculative uses the draft "
        "length that the server chooses. Arrows lead from the target alone to speculative (medians). "
        f"Tokens/s are medians of {bench['repetitions']} interleaved repetitions; ratios have their 95 % "
        f"interval. Answers have at most {bench['max_tokens']} tokens. "
        + (f"**Slower than the target alone at {listed(slower)} concurrent requests.** " if slower else "")
        + _answers(bench)
        + _step(bench),
        "",
        conditions(bench["conditions"]),
    ]
    return "\n".join(lines)


def every_load(bench: Document) -> str:
    """Compare the adaptive draft length with the target alone, for every prompt set at every load."""
    loads = [cell["load"] for cell in bench["cells"]]
    columns = [load for index, load in enumerate(loads) if load not in loads[:index]]
    names = list(dict.fromkeys(cell["prompt_set"] for cell in bench["cells"]))
    over_all = bench.get("over_all_loads")  # older results lack it
    heads = [*map(_load, columns), *(["all loads"] if over_all else [])]
    lines = [f"| Prompts | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for name in names:
        row = [name]
        for column in columns:
            cell = next(
                cell for cell in bench["cells"] if (cell["prompt_set"], cell["load"]) == (name, column)
            )
            adaptive = _arm(cell, "adaptive")
            row.append(f"**{_ratio(adaptive):.2f}** ({_interval(adaptive['ratio_to_target'])})")
        if over_all:
            row.append(f"**{over_all[name]['value']:.2f}** ({_interval(over_all[name])})")
        lines.append("| " + " | ".join(row) + " |")
    compared = [each for cell in bench["cells"] for each in cell["adaptive_compared"]]
    quantities = "Concurrent requests: by output tokens/s; arrivals: by mean latency. "
    lines += ["", f"{quantities}{_verdicts(compared, 'target alone')} {_verdicts(compared, None)}"]
    return "\n".join(lines)


def _verdicts(compared: list[Document], other: str | None) -> str:
    """How often the adaptive arm kept up: with one arm, or with the best fixed draft length."""
    chosen = [each for each in compared if (each["to"] == "target alone") == (other is not None)]
    words = [each["verdict"] for each in chosen]
    return (
        f"At least {chosen[0]['limit']} times the {other or 'best fixed draft length'}: "
        f"{words.count('pass')} of {len(words)} pass, {words.count('inconclusive')} are inconclusive, "
        f"{words.count('fail')} fail."
    )


def _load(load: Document) -> str:
    if load["kind"] == "closed":
        return f"{load['num_at_once']} concurrent"
    return f"arrivals at {load['share_of_capacity']:g} of capacity"


def _arm(cell: Document, name: str) -> Document:
    found: Document = next(arm for arm in cell["arms"] if arm["arm"] == name)
    return found


def _fixed(cell: Document) -> list[Document]:
    return [arm for arm in cell["arms"] if arm["num_draft_tokens"] is not None]


def _ratio(arm: Document) -> float:
    value: float = arm["ratio_to_target"]["value"]
    return value


def _interval(ratio: Document) -> str:
    return f"{ratio['low']:.2f} to {ratio['high']:.2f}"


def _ms(percentiles: Document | None, digits: int) -> str:
    return times(None if percentiles is None else percentiles["p50"], 1e3, digits)


def _answers(bench: Document) -> str:
    different = bench["answers_that_differ"]
    return "Every answer was the target's own. " if different == 0 else f"**{different} answers differed.** "


def _step(bench: Document) -> str:
    step = bench["decode_step"]
    if not step:
        return ""
    return (
        f"One decode step of the target at one request took {step['step_ms']:.1f} ms, "
        f"{step['ratio']:.2f} times the {step['floor_ms']:.1f} ms that reading its "
        f"{step['weight_bytes'] / 1e6:.0f} MB of weights takes at the {step['bandwidth_gb_per_s']:.1f} GB/s "
        "measured in between."
    )
