"""The table of ``make bench-peers``: this server beside other engines, each at its best draft length."""

from __future__ import annotations

from docs.figures.words import Document, conditions

_OURS = "draftproof"
_ALL = "all"


def peers(document: Document) -> str:
    """Tokens per second of each engine by prompts and load, and how ours compares with each."""
    titles = {_OURS: "Draftproof, through Triton"} | {
        name: about["title"] for name, about in document["conditions"]["peers"].items()
    }
    sets = list(dict.fromkeys(arm["prompt_set"] for arm in document["arms"]))
    loads = sorted({arm["num_at_once"] for arm in document["arms"]})
    lines = [
        "| Concurrent | Engine | "
        + " | ".join(_set_title(name) for name in sets)
        + " | Answers unlike its target |",
        "|---|---|" + "---|" * (len(sets) + 1),
    ]
    for load in loads:
        for engine, title in titles.items():
            cells = [_cell(document, engine, name, load) for name in sets]
            if any(cells):
                cells = [cell or "-" for cell in cells]
                lines.append(
                    f"| {load} | {title} | {' | '.join(cells)} | {_unlike(document, engine, load)} |"
                )
    lines += [
        "",
        "Medians of output tokens/s: target alone -> speculating, at the engine's best fixed draft length K "
        "for that cell. The bold number says how many times as fast Draftproof is (least to greatest "
        f"repetition). {document['repetitions']} repetitions in turn; answers have at most "
        f"{document['max_tokens']} tokens; "
        f"{document['conditions']['method']}.",
        "",
        conditions(document["conditions"]),
    ]
    return "\n".join(lines)


def _set_title(name: str) -> str:
    return "all together" if name == _ALL else name


def _arms(document: Document, engine: str, load: int, prompt_set: str | None = None) -> list[Document]:
    return [
        arm
        for arm in document["arms"]
        if (arm["engine"], arm["num_at_once"]) == (engine, load)
        and arm["num_draft_tokens"] != 0
        and prompt_set in (None, arm["prompt_set"])
    ]


def _cell(document: Document, engine: str, prompt_set: str, load: int) -> str:
    arms = _arms(document, engine, load, prompt_set)
    if not arms:
        return ""
    best = max(arms, key=_speed)
    alone = next(
        arm
        for arm in document["arms"]
        if (arm["engine"], arm["num_at_once"], arm["prompt_set"], arm["num_draft_tokens"])
        == (engine, load, prompt_set, 0)
    )
    speeds = f"{_speed(alone):.0f} -> {_speed(best):.0f}"
    if engine == _OURS:
        return speeds
    ours = best["ours_to_this"]
    length = best["num_draft_tokens"]
    return f"{speeds} (K={length}): **{ours['median']:.2f}** ({ours['low']:.2f} to {ours['high']:.2f})"


def _speed(arm: Document) -> float:
    value: float = arm["output_tokens_per_s"]["median"]
    return value


def _unlike(document: Document, engine: str, load: int) -> str:
    """Over all of its draft lengths and prompts."""
    arms = [arm for arm in _arms(document, engine, load) if arm["prompt_set"] != _ALL]
    return f"{sum(arm['num_different'] for arm in arms)} of {sum(arm['num_answers'] for arm in arms)}"
