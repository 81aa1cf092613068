"""The table of ``benchmarks.server_memory``."""

from __future__ import annotations

from typing import Any

from docs.figures.words import Document, conditions

_KINDS = {"int8": "INT8", "int4": "INT4", "none": "float32"}


def server_memory(document: Document) -> str:
    """Return one line for each server: what it holds, and its resident memory."""
    lines = [
        "| Weights | Engines | KV caches | `speculative` | Other processes | Together |",
        "|---|---|---|---|---|---|",
    ]
    lines += [_line(server) for server in document["servers"]]
    sizes = document["servers"][0]["engines"]
    target, draft = (sizes[role]["num_parameters"] / 1e6 for role in ("target", "draft"))
    lines += [
        "",
        f"Resident memory of a server after 8 requests, random Llama of {target:.0f} M parameters with a "
        f"draft of {draft:.0f} M.",
        "",
        conditions(document["conditions"]),
    ]
    return "\n".join(lines)


def _line(server: dict[str, Any]) -> str:
    held = {process["name"]: process["rss"] for process in server["processes"]}["speculative"]
    figures = [
        sum(server["engine_mb"].values()),
        sum(server["cache_mb"].values()),
        held,
        server["rss_mb"] - held,
        server["rss_mb"],
    ]
    cells = [_KINDS[server["quantization"]], *(f"{figure / 1e3:.2f} GB" for figure in figures)]
    return f"| {' | '.join(cells)} |"
