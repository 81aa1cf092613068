"""The tables of predicted acceptance, from the file that `make acceptance` ends with."""

from __future__ import annotations

from docs.figures.words import Document

_WORDS = {"none": "unquantized", "fp8": "FP8", "int8_sq": "INT8 SmoothQuant", "int8": "INT8 weight-only"}


def predicted_acceptance(document: Document) -> str:
    """One table per temperature, targets down and drafts across, and what the figures depend on."""
    drafts = list(dict.fromkeys(pair["draft"] for pair in document["pairs"]))
    agreement = {entry["target"]: entry for entry in document["agreement"]}
    lines = []
    for temperature in dict.fromkeys(pair["temperature"] for pair in document["pairs"]):
        words = "greedy" if temperature == 0 else f"temperature {temperature}, shared noise"
        lines += [
            f"| Target ({words}) |"
            + "".join(f" draft {_WORDS[name]} |" for name in drafts)
            + " same argmax |",
            "|---" * (len(drafts) + 2) + "|",
        ]
        for target, same in agreement.items():
            cells = [
                _cell(pair)
                for pair in document["pairs"]
                if (pair["target"], pair["temperature"]) == (target, temperature)
            ]
            cells.append(_with_interval(same, "same_argmax"))
            lines.append(f"| {_WORDS[target]} | {' | '.join(cells)} |")
        lines.append("")
    about = document["conditions"]
    lines.append(
        "`acceptance_rate` (`mean_acceptance_length`); for the unquantized pair with its 95 % interval over "
        "prompts, for the others with the change against it on the same prompts and the interval of that; "
        f"{document['num_draft_tokens']} draft tokens; {document['num_prompts']} held-out prompts of "
        f"{document['prompt_tokens']} tokens, {document['max_tokens']} new tokens each, recipe "
        f"`{document['recipe']}` ungrown. Same argmax: positions of the unquantized target's greedy text at "
        f"which a target would choose the same token. {about['cpu']}, OpenVINO "
        f"{about['packages']['openvino']}; {about['date'][:10]}, commit {about['git_sha'][:10]}, "
        f"`make acceptance RECIPE={document['recipe']}`."
    )
    return "\n".join(lines)


def _cell(pair: Document) -> str:
    length = f"({pair['mean_acceptance_length']:.2f})"
    if pair["draft"] == pair["target"] == "none":
        return f"{_with_interval(pair, 'acceptance_rate')} {length}"
    low, high = pair["acceptance_rate_change_interval"]
    change = f"{pair['acceptance_rate_change']:+.3f} [{low:+.3f}, {high:+.3f}]"
    return f"{pair['acceptance_rate']:.3f} {length}, {change}"


def _with_interval(entry: Document, key: str) -> str:
    low, high = entry[f"{key}_interval"]
    return f"{entry[key]:.3f} [{low:.3f}, {high:.3f}]"
