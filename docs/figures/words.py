"""Says numbers, lists and the conditions of a measurement."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

Document = dict[str, Any]


def times(value: float | None, factor: float, digits: int) -> str:
    """A number in another unit; "-" for None."""
    return "-" if value is None else f"{value * factor:.{digits}f}"


def listed(values: Sequence[object]) -> str:
    """Such as ``1, 4 and 8``."""
    words = [str(value) for value in values]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def conditions(about: Document) -> str:
    """One line that says what the figures above depend on."""
    engines = about.get("engines", {})
    parts = [f"Conditions: recipe `{about['recipe']}`"] if "recipe" in about else []
    for role in ("target", "draft"):
        if "num_parameters" in engines.get(role, {}):
            size = engines[role]["num_parameters"] / 1e6
            parts.append(f"{role} {size:.1f} M parameters, {engines[role]['quantization']}")
    parts += [
        f"{processor(about)}, {about['num_cores']} cores, load {about['load_average_1min']} at the start",
        ", ".join([*_triton(about), f"OpenVINO {about['packages']['openvino']}"]),
        f"Python {about['python']}",
        f"{about['date'][:10]}, commit {about['git_sha'][:10]}, `{_command(about['command'])}`",
    ]
    return "; ".join(parts) + "."


def processor(about: Document) -> str:
    """Name the processor and its widest instructions, which the name alone does not tell."""
    known = {"amx_int8": "AMX", "avx512_vnni": "AVX-512 VNNI, no AMX", "avx512f": "AVX-512", "avx2": "AVX2"}
    widest = next((words for flag, words in known.items() if flag in about.get("cpu_flags", ())), "")
    return f"{about['cpu']} ({widest})" if widest else str(about["cpu"])


def _triton(about: Document) -> list[str]:
    return [f"Triton {about['triton_version']}"] if "triton_version" in about else []


def _command(words: str) -> str:
    """Leave out options whose value was empty: recordings until November 2026 have them without quotes."""
    return re.sub(r" --[a-z-]+ (?= |$)", "", words)
