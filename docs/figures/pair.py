"""Acceptance of the demonstration pair, as ``make evaluate-demo`` measured it."""

from __future__ import annotations

from docs.figures.words import Document


def pair(evaluation: Document) -> str:
    """Return acceptance by draft length, with and without outputs that loop."""
    about = evaluation["conditions"]
    modes = {"greedy": "greedy", "sampled": f"temperature {about['temperature_of_sampled']}"}
    lines = ["| `num_draft_tokens` |", "|---|"]
    columns = []
    for mode, words in modes.items():
        figures = evaluation[mode]
        lines[0] += f" {words} | {words}, the {figures['outputs_without_loop']} outputs without a loop |"
        lines[1] += "---|---|"
        columns += [figures["all_outputs"], figures.get("outputs_without_loop_only", {})]
    for count in evaluation["greedy"]["all_outputs"]:
        cells = []
        for column in columns:
            cell = column.get(count)
            cells.append(
                f"{cell['acceptance_rate']:.2f} ({cell['mean_acceptance_length']:.2f})" if cell else "-"
            )
        lines.append(f"| {count} | {' | '.join(cells)} |")
    loops = {mode: f"{evaluation[mode]['loop_share_of_tokens']:.0%}" for mode in modes}
    lines += [
        "",
        f"`acceptance_rate` (`mean_acceptance_length`) on {about['prompts']} held-out prompts of "
        f"{about['prompt_tokens']} tokens, {about['new_tokens']} new tokens each; {about['coupling']}. "
        f"{loops['greedy']} of the greedy and {loops['sampled']} of the sampled tokens lie in an exact "
        f"repetition. Simulated on the trained pair, neither grown nor INT8: weights {about['weights']}; "
        f"{about['processor']}, torch {about['torch']}, {about['date'][:10]}. More in "
        "`engines/demo_pair/README.md`.",
    ]
    return "\n".join(lines)
