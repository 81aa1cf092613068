"""Make the report of a comparison, in at most five sections: the verdict, and what stands behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipelines.bench.reporting.rates import upper_bound
from pipelines.bench.reporting.section import Section, Table
from pipelines.validation.audit import ALPHA, CONFIDENCE
from pipelines.validation.differences import table_of
from pipelines.validation.openai.baseline import Baseline
from pipelines.validation.openai.kinds import SAMPLED
from pipelines.validation.openai.recording import can_score
from pipelines.validation.openai.verdict import found_in, sentence, tallies, verdict_of
from pipelines.validation.openai.verify import Candidate, Compared, compares_streams

NEVER_ASKED = (
    "images and audio",
    "embeddings",
    "/v1/responses",
    "best_of and beams",
    "penalties and logit_bias",
    "regular expressions and grammars",
    "answers with a seed",
)
"""Parts of OpenAI's API that this command has no questions about."""

_MOST_DIFFERENCES = 200


def report(
    baseline: Baseline, candidate: Candidate, compared: Compared, seconds: float, sampled: Sequence[Section]
) -> list[Section]:
    """Return the sections of the report, the verdict first.

    Args:
        baseline: The control's answers.
        candidate: The candidate.
        compared: What was found.
        seconds: Time of all questions.
        sampled: Sections about the distribution of sampled answers, if they were asked for.
    """
    found = found_in(compared, candidate.server, streams=candidate.streams)
    said = sentence(compared, seconds)
    document = {
        "sentence": said,
        "faults": [*compared.faults, *(each for way in compared.ways for each in way.judged.faults)],
        "doubts": [*compared.doubts, *(each for way in compared.ways for each in way.judged.doubts)],
        "differences": [each.document() for each in found[:_MOST_DIFFERENCES]],
        "num_differences": len(found),
        "alpha": ALPHA,
        "confidence": CONFIDENCE,
    }
    example = found[0].example() if found else ""
    table = table_of([(each.difference, each.kind) for each in found])
    return [
        Section("Verdict", verdict_of(compared), said, document=document, example=example),
        _asked(compared),
        Section("Differences", "info", "The worst first; margins are top-2 gaps in nats.", table),
        _not_looked_at(baseline, candidate, compared, has_samples=bool(sampled)),
        *sampled,
    ]


def _asked(compared: Compared) -> Section:
    """Show the questions of each kind, how many differ in each way, and which share would have been seen."""
    counted = tallies(compared.ways)
    unasked = {f"differ {way.name}": None for way in compared.ways}
    rows: list[dict[str, object]] = []
    for kind in dict.fromkeys(each.kind for each in counted):
        of_kind = [each for each in counted if each.kind == kind]
        num = min(each.num for each in of_kind)
        rows.append(
            {
                "kind": kind,
                "questions": num,
                **unasked,
                **{f"differ {each.way.name}": sum(map(len, each.differences.values())) for each in of_kind},
                "control's own": max(each.num_noise for each in of_kind),
                "share seen with 95%": f"{upper_bound(0, num, CONFIDENCE):.1%}",
            }
        )
    limits = [limit for way in compared.ways if (limit := way.judged.figures["tie_limit"]) is not None]
    tie = f"a tie is a top-2 gap of at most {max(limits):.3g} nats" if limits else "no difference is a tie"
    greedy = ", ".join(
        f"{greedy} of {num} {who}"
        for who, (num, greedy) in zip(("control", "candidate"), compared.sampled, strict=True)
    )
    summary = (
        f"Each question was asked one at a time and under load; {tie}, as the control's own differences say. "
        f"Of the {SAMPLED} (temperature 1) are the greedy ones: {greedy}."
    )
    document = {
        "audits": {way.judged.name: dict(way.judged.figures) for way in compared.ways},
        "kinds": rows,
        "sampled": compared.sampled,
    }
    return Section("What was compared", "info", summary, Table.of(rows), document=document)


def _not_looked_at(
    baseline: Baseline, candidate: Candidate, compared: Compared, *, has_samples: bool
) -> Section:
    """List what was not looked at, what both servers can tell, and the requests that failed."""
    server = candidate.server
    control, judged = baseline.abilities, server.abilities
    notes = [*baseline.not_checked, *compared.notes]
    if not has_samples:
        notes.append("the distribution of sampled answers, which --sampled compares if both return token ids")
    if not judged.streams:
        notes.append("streams: the candidate has none")
    elif not compares_streams(control, judged):
        notes.append("streams: both servers end them without data: [DONE], so a cut one would look whole")
    elif not (control.stream_usage and judged.stream_usage):
        notes.append("usage in streams: one of the servers does not tell it")
    notes += [
        f"token ids: the {name} returns only text, and different tokens can have the same text"
        for name, abilities in (("control", control), ("candidate", judged))
        if not abilities.token_ids
    ]
    if not control.log_probs:
        notes.append("ties: the control returns no log probabilities, so no difference is taken for rounding")
    if not can_score(control):
        notes.append(
            "rounding of passes with several positions: the control cannot score its own answers "
            "(return_token_ids, prompts of ids, echo)"
        )
    failures: tuple[Mapping[str, int], ...] = baseline.failures, server.failures
    both = {
        **{name: (value, judged.document()[name]) for name, value in control.document().items()},
        **{
            what: tuple(each.get(what, 0) for each in failures)
            for what in dict.fromkeys([*failures[0], *failures[1]])
        },
        "sent again, because the server was busy": (baseline.num_retries, server.num_retries),
    }
    rows = [
        {"what": what, "control": control_s, f"candidate ({server.url})": candidate_s}
        for what, (control_s, candidate_s) in both.items()
    ]
    document = {
        "not_checked": notes,
        "never_asked": list(NEVER_ASKED),
        "failures": {"control": dict(baseline.failures), "candidate": dict(server.failures)},
        "retries": {"control": baseline.num_retries, "candidate": server.num_retries},
        "control": control.document(),
        "candidate": judged.document(),
    }
    summary = f"This command never asks for {', '.join(NEVER_ASKED)}. Nor were compared:"
    listed = "\n".join(f"- {note}" for note in notes)
    return Section("Not looked at", "info", summary, Table.of(rows), document=document, example=listed)
