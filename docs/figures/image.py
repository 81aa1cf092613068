"""The table of ``make image``."""

from __future__ import annotations

from docs.figures.words import Document

_HELD = {
    "debian": "Debian and Python",
    "environment": "Packages of the lock",
    "code": "Code, list of packages",
}


def image(document: Document) -> str:
    """Return a line for each layer and their sum, beside the limit."""
    layers, limit = document["layers"], document["limit_bytes"]
    lines = ["| Layer | Unpacked | Compressed |", "|---|---|---|"]
    for layer in layers:
        lines.append(_line(_HELD[layer["name"]], layer["unpacked_bytes"], layer["compressed_bytes"]))
    unpacked = sum(layer["unpacked_bytes"] for layer in layers)
    compressed = sum(layer["compressed_bytes"] for layer in layers)
    packages, about = document["num_packages"], document["conditions"]
    unknown = sum(document["num_without_licence"].values())
    return "\n".join(
        [
            *lines,
            _line(f"Together (limit {limit / 1e6:.0f} MB)", unpacked, compressed),
            "",
            f"{packages['debian']} packages of Debian, {packages['python']} of Python; "
            f"{unknown} of them state no licence that a program can read. Digest `{document['digest']}`.",
            "",
            f"Conditions: Debian {about['debian']}, mmdebstrap {about['mmdebstrap']}, "
            f"umoci {about['umoci']}; {about['date'][:10]}, commit {about['git_sha'][:10]}, "
            f"`{about['command']}`.",
        ]
    )


def _line(name: str, unpacked: int, compressed: int) -> str:
    return f"| {name} | {unpacked / 1e6:.0f} MB | {compressed / 1e6:.0f} MB |"
