"""The tables of ``benchmarks.schema_suite`` and ``benchmarks.structured_answers``."""

from __future__ import annotations

from typing import Any

from docs.figures.words import Document, conditions

_NUM_KEYWORDS = 8


def schema_suite(document: Document) -> str:
    """Return one line for each draft of the suite, and the keywords that are refused most."""
    lines = [
        "| Draft | Schemas | Refused | Invalid instances allowed | Valid instances allowed |",
        "|---|---|---|---|---|",
    ]
    for each in document["drafts"]:
        share = each["num_refused"] / each["num_schemas"]
        cells = [
            each["draft"],
            str(each["num_schemas"]),
            f"{each['num_refused']} ({share:.0%})",
            f"{each['num_invalid_allowed']} of {each['num_invalid']}",
            f"{each['num_valid_allowed']} of {each['num_valid']}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    refused = sorted(document["drafts"][-1]["refused"].items(), key=lambda item: -item[1])[:_NUM_KEYWORDS]
    named = ", ".join(f"`{name}` {count}" for name, count in refused)
    wrong = [each for draft in document["drafts"] for each in draft["wrong"]]
    lines += ["", f"Refused most in the last draft, by the file of the suite: {named}."]
    if wrong:
        lines += ["", f"Invalid, and allowed: {'; '.join(wrong)}."]
    return "\n".join([*lines, "", _packages(document), "", conditions(document["conditions"])])


def structured_answers(document: Document) -> str:
    """Return one line for each class of schemas."""
    lines = [
        "| Class | Whole answers | Valid | The same without a draft | Draft tokens accepted |",
        "|---|---|---|---|---|",
    ]
    wrong: list[str] = []
    for each in document["classes"]:
        cells = [
            each["name"],
            f"{each['num_whole']} of {each['num_asked']}",
            str(each["num_valid"]),
            f"{each['num_equal']} of {each['num_compared']}",
            f"{each['num_accepted'] / max(1, each['num_drafted']):.0%}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
        wrong += each["wrong"]
    about = (
        f"Model `{document['model']['id']}`, temperature {document['temperature']:g}, one seed each, at most "
        f"{document['max_tokens']} tokens; answers that reached them are not whole."
    )
    lines += ["", about]
    if wrong:
        lines += ["", f"Refused by the validator: {'; '.join(_code(text) for text in wrong[:3])}."]
    return "\n".join([*lines, "", _packages(document), "", conditions(document["conditions"])])


def _packages(document: Document) -> str:
    packages: dict[str, Any] = document["packages"]
    return f"Packages: {', '.join(f'{name} {version}' for name, version in packages.items())}."


def _code(text: str) -> str:
    return f"`{' '.join(text.split())}`"
