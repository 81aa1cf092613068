"""Run one of the three forms: compare two servers, record a control, or compare a server with a baseline."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from pipelines.bench.reporting.conditions import conditions
from pipelines.bench.reporting.section import Section
from pipelines.command_line.prompts import Prompts
from pipelines.errors import VerificationError
from pipelines.validation.asking import Stages
from pipelines.validation.openai.baseline import Baseline, Settings
from pipelines.validation.openai.recording import Recorder, rounds
from pipelines.validation.openai.sampled import compare_samples
from pipelines.validation.openai.sections import report
from pipelines.validation.openai.server.endpoint import Endpoint
from pipelines.validation.openai.server.server import OpenAIServer
from pipelines.validation.openai.verify import Candidate, Expect, check_paths, compare
from pipelines.validation.size import Size

Conditions = dict[str, Any]
_SILENCE_S = 600.0  # of a control


@dataclass(frozen=True)
class Run:
    """One run of the command, with what all forms share.

    Attributes:
        command_line: Arguments of ``draftproof verify``, for the report.
        timeout_s: Longest silence of a server; None for ten minutes of the control, and of the candidate
            several times the control's longest answer.
        expect: How to judge differences.
        size: What the user chose of the size of the comparison.
        ends_at_s: Clock time at which it ends, in seconds of ``time.monotonic``.
    """

    command_line: Sequence[str]
    timeout_s: float | None = None
    expect: Expect = "audit"
    size: Size = field(default_factory=Size)
    ends_at_s: float = math.inf

    def compare_servers(
        self, control: Endpoint, candidate: Endpoint, prompts: Prompts, settings: Settings
    ) -> tuple[list[Section], Conditions]:
        """Compare two servers.

        Raises:
            DraftproofError: One of them does not answer, or they cannot be compared.
        """
        with closing(self._reach(control)) as first, closing(self._reach(candidate)) as second:
            check_paths(prompts.all, first.abilities, second.abilities, second.url)
            named_ids = first.abilities.named_ids and second.abilities.named_ids
            stages, began_s = Stages(None, self.ends_at_s), time.monotonic()
            print(*prompts.lines(), sep="\n", flush=True)
            size = self.size, settings, self.ends_at_s
            recorder = Recorder(first, prompts, *size, 2, stages, named_ids=named_ids)
            given = first.abilities, settings.num_at_once, self.timeout_s, stages
            judged = Candidate(second, *given, named_ids=named_ids)
            for part in recorder.rounds():
                judged.ask(part.questions, first.slowest_s)
            baseline = recorder.baseline(self._conditions())
            title = f"{candidate.url} beside {control.url}"
            return self._report(baseline, judged, title, stages, began_s, {})

    def record_control(self, control: Endpoint, prompts: Prompts, settings: Settings) -> Baseline:
        """Record the answers of a control; errors are those of ``compare_servers``."""
        with closing(self._reach(control)) as server:
            print(*prompts.lines(), sep="\n", flush=True)
            size = self.size, settings, self.ends_at_s
            recorder = Recorder(server, prompts, *size, 1, Stages(None, self.ends_at_s))
            for _ in recorder.rounds():
                pass
            return recorder.baseline(self._conditions())

    def compare_with_baseline(
        self, baseline: Baseline, digest: str, candidate: Endpoint
    ) -> tuple[list[Section], Conditions]:
        """Compare a server with a baseline; errors are those of ``compare_servers``."""
        recorded = {"sha256": digest, **{name: baseline.conditions[name] for name in ("date", "command")}}
        questions, settings = baseline.answers.questions, baseline.settings
        with closing(self._reach(candidate)) as server:
            able = server.abilities
            if not candidate.model and _name(able.model) != _name(baseline.abilities.model):
                raise VerificationError(
                    f"the baseline is of the model {baseline.abilities.model} ({baseline.control}), and "
                    f"{candidate.url} serves {able.model}",
                    f"record a baseline of that model, or say --model {able.model} if it is the same",
                )
            check_paths([question.prompt for question in questions], baseline.abilities, able, server.url)
            stages, began_s = Stages(None, self.ends_at_s), time.monotonic()
            given = baseline.abilities, settings.num_at_once, self.timeout_s, stages
            judged = Candidate(server, *given, named_ids=baseline.abilities.named_ids)
            for part in rounds(len(questions), self.ends_at_s):
                judged.ask(questions[part], baseline.slowest_s)
            title = f"{candidate.url} beside a baseline of {recorded['date'][:10]}"
            return self._report(baseline, judged, title, stages, began_s, {"baseline": recorded})

    def _reach(self, endpoint: Endpoint) -> OpenAIServer:
        print(f"asking {endpoint.url} what it can tell", flush=True)
        return OpenAIServer(endpoint, self.timeout_s or _SILENCE_S)

    def _report(
        self,
        baseline: Baseline,
        candidate: Candidate,
        title: str,
        stages: Stages,
        began_s: float,
        more: Conditions,
    ) -> tuple[list[Section], Conditions]:
        seconds = time.monotonic() - began_s
        samples = baseline.samples if candidate.server.abilities.token_ids else None
        load = baseline.settings.num_at_once
        sampled = compare_samples(samples, candidate.server, load, stages) if samples else []
        sections = report(baseline, candidate, compare(baseline, candidate, self.expect), seconds, sampled)
        context = self._conditions(
            recipe=title,
            engines={"control": baseline.control, "candidate": candidate.server.description},
            prompts=baseline.conditions["prompts"],
            **more,
        )
        return sections, context

    def _conditions(self, **more: Any) -> Conditions:
        command = shlex.join(["draftproof", "verify", *self.command_line])
        return conditions("pipelines.validation", self.command_line, **more) | {"command": command}


def _name(model: str) -> str:
    """Return the name of a model without its folder, by which two servers may know it."""
    return model.rstrip("/").rpartition("/")[2].casefold()
