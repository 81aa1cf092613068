"""The tables of ``benchmarks.quantized_pair`` and ``benchmarks.quantized_steps``."""

from __future__ import annotations

from docs.figures.words import Document, conditions

_WORDS = {"none": "float32", "int8": "INT8", "int4": "INT4"}


def quantized_pair(document: Document) -> str:
    """Return one table of the networks alone, and one of acceptance."""
    lines = [
        "| Network | Quantization | KL, nats | Same argmax | Perplexity, times float32 |",
        "|---|---|---|---|---|",
    ]
    for role, found in document["divergence"].items():
        for quantization in ("int8", "int4"):
            each = found[quantization]
            cells = [role, _WORDS[quantization], _interval(each["kl"], 5), _interval(each["same_argmax"], 3)]
            lines.append(f"| {' | '.join(cells)} | {_interval(each['perplexity_ratio'], 4)} |")
    drafts = list(dict.fromkeys(pair["draft"] for pair in document["acceptance"]))
    lines += ["", "| Target |" + "".join(f" draft {_WORDS[name]} |" for name in drafts)]
    lines.append("|---" * (len(drafts) + 1) + "|")
    for target in drafts:
        pairs = (pair for pair in document["acceptance"] if pair["target"] == target)
        lines.append(f"| {_WORDS[target]} | {' | '.join(_acceptance(pair) for pair in pairs)} |")
    lines += [
        "",
        f"Means with 95 % intervals over {document['num_windows']} windows of {document['window_tokens']} "
        "tokens. Acceptance rate (mean length), with its change against the float32 pair on the same prompts "
        f"and the interval of that: greedy, {document['num_draft_tokens']} draft tokens, "
        f"{document['num_prompts']} prompts, {document['max_tokens']} new tokens each. "
        + conditions(_without_engines(document)),
    ]
    return "\n".join(lines)


def quantized_steps(document: Document) -> str:
    """Return one line for each number of rows."""
    lines = ["| Rows | INT8, ms | INT4, ms | INT4 / INT8, median (quartiles) |", "|---|---|---|---|"]
    for step in document["steps"]:
        low, high = step["ratio_quartiles"]
        lines.append(
            f"| {step['num_rows']} | {step['int8_ms']:.1f} | {step['int4_ms']:.1f} | {step['ratio']:.2f} "
            f"({low:.2f} to {high:.2f}) |"
        )
    memory = {name: size / 1e6 for name, size in document["memory_bytes"].items()}
    engines = document["conditions"]["engines"]
    read = {name: engines[name]["weight_bytes_per_step"] / 1e6 for name in memory}
    lines += [
        "",
        f"{document['repetitions']} pairs of steps in turn, after {document['context']} tokens. A step reads "
        f"{read['int8']:.0f} MB of weights in INT8 and {read['int4']:.0f} MB in INT4; a loaded engine takes "
        f"{memory['int8']:.0f} and {memory['int4']:.0f} MB of memory. "
        + conditions(_without_engines(document)),
    ]
    return "\n".join(lines)


def _acceptance(pair: Document) -> str:
    rate = f"{pair['acceptance_rate']:.3f} ({pair['mean_acceptance_length']:.2f})"
    if pair["draft"] == pair["target"] == "none":
        return rate
    low, high = pair["change_interval"]
    return f"{rate}, {pair['change']:+.3f} [{low:+.3f}, {high:+.3f}]"


def _interval(found: Document, digits: int) -> str:
    low, high = found["interval"]
    return f"{found['value']:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def _without_engines(document: Document) -> Document:
    return {key: value for key, value in document["conditions"].items() if key != "engines"}
