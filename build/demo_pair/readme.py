"""Writes the pair's README from its evaluation, so that no figure in it can drift from what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_TEMPLATE = Path(__file__).with_name("readme_template.md")


def _cell(figures: dict[str, Any] | None) -> str:
    if figures is None:
        return "-"
    return f"{figures['acceptance_rate']:.2f} ({figures['mean_acceptance_length']:.2f})"


def _table(evaluation: dict[str, Any]) -> str:
    columns = [
        evaluation[mode].get(part, {})
        for mode in ("greedy", "sampled")
        for part in ("all_outputs", "outputs_without_loop_only")
    ]
    counts = list(evaluation["greedy"]["all_outputs"])
    return "\n".join(
        f"| {count} | " + " | ".join(_cell(column.get(count)) for column in columns) + " |"
        for count in counts
    )


def render_readme(evaluation: dict[str, Any]) -> str:
    """Returns the README's text for the document that ``evaluation.json`` holds."""
    conditions, training = evaluation["conditions"], evaluation["conditions"]["training"]
    losses = evaluation["validation_loss_nats_per_token"]
    per_byte = {name: loss / 0.6931472 / evaluation["bytes_per_token"] for name, loss in losses.items()}
    greedy, sampled = evaluation["greedy"], evaluation["sampled"]
    return _TEMPLATE.read_text(encoding="utf-8").format(
        target_loss=f"{losses['target']:.2f} ({per_byte['target']:.2f})",
        draft_loss=f"{losses['draft']:.2f} ({per_byte['draft']:.2f})",
        prompts=conditions["prompts"],
        prompt_tokens=conditions["prompt_tokens"],
        new_tokens=conditions["new_tokens"],
        temperature=conditions["temperature_of_sampled"],
        greedy_clean=greedy["outputs_without_loop"],
        sampled_clean=sampled["outputs_without_loop"],
        table=_table(evaluation),
        greedy_loops=f"{greedy['loop_share_of_tokens']:.0%}",
        sampled_loops=f"{sampled['loop_share_of_tokens']:.0%}",
        greedy_agreement=f"{greedy['token_agreement_outside_loops']:.2f}",
        sampled_agreement=f"{sampled['token_agreement_outside_loops']:.2f}",
        python=conditions["python"],
        torch=conditions["torch"],
        processor=conditions["processor"],
        threads=training["threads"],
        seed=training["seed"],
        steps=training["steps"],
        tokens=f"{training['target_tokens'] / 1e6:.1f} M",
        minutes=training["minutes"],
        corpus=conditions["corpus_sha256"][:12],
        date=conditions["date"][:10],
        note=conditions["note"],
        held_out=training.get("held_out_modules", 24),
    )


def write_readme(directory: Path) -> None:
    """Writes ``README.md`` next to ``evaluation.json`` in ``directory``."""
    evaluation = json.loads((directory / "evaluation.json").read_text(encoding="utf-8"))
    (directory / "README.md").write_text(render_readme(evaluation), encoding="utf-8")
