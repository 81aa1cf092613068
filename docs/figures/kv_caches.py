"""The table of ``benchmarks.kv_caches``."""

from __future__ import annotations

from typing import Any

from docs.figures.words import Document, conditions


def kv_caches(document: Document) -> str:
    """Return one line for each type of cache: bytes, what it changes, and step times by context length."""
    contexts = [step["context_len"] for step in document["caches"][0]["steps"]]
    rows = " / ".join(map(str, document["rows"]))
    heads = "".join(f" {context_len:,} tokens |" for context_len in contexts)
    lines = [
        f"| `kv_cache.dtype` | Bytes per token | KL | Same choice | Agreement of the draft |{heads}",
        "|---|---|---|---|---|" + "---|" * len(contexts),
        *(_line(cache) for cache in document["caches"]),
        "",
        f"KL: mean divergence from float32 in nats, over {document['num_positions']:,} positions. "
        "Agreement: share of positions in which a draft with this cache chooses what a target with float32 "
        f"chooses; a dash was not measured. Step times by context length in ms: {rows} rows; a chunk of "
        f"{document['prompt_tokens']} tokens of a prompt. CPU time of the busiest thread.",
        "",
        conditions(document["conditions"]),
    ]
    return "\n".join(lines)


def _line(cache: dict[str, Any]) -> str:
    steps = [
        f"{' / '.join(f'{rows_ms:.0f}' for rows_ms in step['rows_ms'])}; {step['prompt_ms']:.0f}"
        for step in cache["steps"]
    ]
    kl = f"{cache['kl']:.5f}" if cache["kl"] else "0"
    agreement = cache.get("draft_agreement")
    shares = [f"{cache['top1']:.1%}", "-" if agreement is None else f"{agreement:.1%}"]
    cells = [f"`{cache['dtype']}`", f"{cache['bytes_per_token']:,}", kl, *shares, *steps]
    return f"| {' | '.join(cells)} |"
