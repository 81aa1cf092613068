"""Render the README of the pair from its evaluation, so that its figures are always those measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_TEMPLATE = Path(__file__).with_name("readme_template.txt")


def _cell(figures: dict[str, Any] | None) -> str:
    if figures is None:
        return "-"
    return f"{figures['acceptance_rate']:.2f} ({figures['mean_acceptance_length']:.2f})"


def _table(evaluation: dict[str, Any]) -> str:
    modes = {
        "greedy": "greedy",
        "sampled": f"temperature {evaluation['conditions']['temperature_of_sampled']}",
    }
    counts = list(evaluation["greedy"]["all_outputs"])
    lines = ["| text | " + " | ".join(counts) + " |", "|---" * (len(counts) + 1) + "|"]
    for mode, label in modes.items():
        figures = evaluation[mode]
        parts = {
            "all_outputs": "all of it",
            "before_first_loop": "each output up to its first loop",
            "outputs_without_loop_only": f"the {figures['outputs_without_loop']} outputs without a loop",
        }
        for part, words in parts.items():
            cells = " | ".join(_cell(figures.get(part, {}).get(count)) for count in counts)
            lines.append(f"| {label}, {words} | {cells} |")
    return "\n".join(lines)


def _sample(evaluation: dict[str, Any], temperature: float) -> str:
    """Return the continuation of a sample as an indented block, which its content cannot end."""
    found = next(sample for sample in evaluation["samples"] if sample["temperature"] == temperature)
    lines = str(found["continuation"]).splitlines()[:10]
    return "\n".join(f"    {line}".rstrip() for line in lines)


def render_readme(evaluation: dict[str, Any]) -> str:
    """Return the README for the content of ``evaluation.json``."""
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
        sample=_sample(evaluation, conditions["temperature_of_sampled"]),
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
    """Write ``README.md`` next to ``evaluation.json`` in ``directory``."""
    evaluation = json.loads((directory / "evaluation.json").read_text(encoding="utf-8"))
    (directory / "README.md").write_text(render_readme(evaluation), encoding="utf-8")
