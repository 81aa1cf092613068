"""The table of ``benchmarks.lookup_corpus``."""

from __future__ import annotations

from docs.figures.words import Document, conditions


def lookup_corpus(document: Document) -> str:
    """Return one line for each kind of request."""
    lines = ["| Requests | Tokens per second | Passes of the target |", "|---|---|---|"]
    for gain in document["gains"]:
        speed = gain["speed_ratio"]
        lines.append(
            f"| {gain['kind']} | {speed['value']:.2f} ({speed['low']:.2f} to {speed['high']:.2f}) "
            f"| {gain['rounds_ratio']:.2f} |"
        )
    lines += [
        "",
        f"With the corpus, relative to without it, with 95% confidence intervals; {document['num_prompts']} "
        f"prompts, {document['max_tokens']} tokens, {document['repetitions']} repetitions, one request at a "
        "time, each request with and without the corpus in turn. The corpus: "
        f"{document['num_tokens']:,} tokens, indexed in {document['index_s']:.1f} s. Answers that differ "
        f"from the target alone: {document['num_different']}.",
        "",
        conditions(document["conditions"]),
    ]
    return "\n".join(lines)
