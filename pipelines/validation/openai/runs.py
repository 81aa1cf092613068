"""Run one of the three forms: compare two servers, record a control, or compare a server with a baseline."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from pipelines.bench.reporting.conditions import conditions
from pipelines.command_line.prompts import Prompts
from pipelines.validation.asking import shown_progress
from pipelines.validation.openai.baseline import Baseline, Settings
from pipelines.validation.openai.recording import record
from pipelines.validation.openai.server.endpoint import Endpoint
from pipelines.validation.openai.server.server import OpenAIServer
from pipelines.validation.openai.verify import Expect, compare
from pipelines.validation.report import Report

Conditions = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One run of the command, with what all forms share.

    Attributes:
        command_line: Arguments of ``draftproof verify``, for the report.
        timeout_s: Longest silence of a server.
        expect: How to judge differences.
    """

    command_line: Sequence[str]
    timeout_s: float = 600.0
    expect: Expect = "audit"

    def compare_servers(
        self, control: Endpoint, candidate: Endpoint, prompts: Prompts, settings: Settings
    ) -> tuple[Report, Conditions]:
        """Compare two servers.

        Raises:
            DraftproofError: One of them does not answer, or they cannot be compared.
        """
        _show_prompts(prompts)
        with (
            closing(OpenAIServer(control, self.timeout_s)) as first,
            closing(OpenAIServer(candidate, self.timeout_s)) as second,
        ):
            baseline = self._record(first, prompts, settings, with_ids=second.abilities.token_ids)
            return self._compare(baseline, second, f"{candidate.url} beside {control.url}", {})

    def record_control(self, control: Endpoint, prompts: Prompts, settings: Settings) -> Baseline:
        """Record the answers of a control; errors are those of ``compare_servers``."""
        _show_prompts(prompts)
        with closing(OpenAIServer(control, self.timeout_s)) as server:
            return self._record(server, prompts, settings, with_ids=True)

    def compare_with_baseline(
        self, baseline: Baseline, digest: str, candidate: Endpoint
    ) -> tuple[Report, Conditions]:
        """Compare a server with a baseline; errors are those of ``compare_servers``."""
        recorded = {"sha256": digest, **{name: baseline.conditions[name] for name in ("date", "command")}}
        with closing(OpenAIServer(candidate, self.timeout_s)) as server:
            title = f"{candidate.url} beside a baseline of {recorded['date'][:10]}"
            return self._compare(baseline, server, title, {"baseline": recorded})

    def _record(
        self, control: OpenAIServer, prompts: Prompts, settings: Settings, *, with_ids: bool
    ) -> Baseline:
        context = self._conditions(prompts=prompts.document())
        with shown_progress() as on_answer:
            return record(control, prompts, settings, context, on_answer, with_ids=with_ids)

    def _compare(
        self, baseline: Baseline, candidate: OpenAIServer, title: str, more: Conditions
    ) -> tuple[Report, Conditions]:
        with shown_progress() as on_answer:
            sections = compare(baseline, candidate, self.expect, on_answer)
        context = self._conditions(
            recipe=title,
            engines={"control": baseline.control, "candidate": candidate.description},
            prompts=baseline.conditions["prompts"],
            **more,
        )
        return Report(tuple(sections)), context

    def _conditions(self, **more: Any) -> Conditions:
        command = shlex.join(["draftproof", "verify", *self.command_line])
        return conditions("pipelines.validation", self.command_line, **more) | {"command": command}


def _show_prompts(prompts: Prompts) -> None:
    for sentence in prompts.lines():
        print(sentence, flush=True)
