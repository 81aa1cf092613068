"""Run one of the three forms: compare two servers, record a control, or compare a server with a baseline."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from pipelines.bench.reporting.conditions import conditions
from pipelines.bench.reporting.section import Section
from pipelines.command_line.prompts import Prompts
from pipelines.validation.asking import Stages
from pipelines.validation.openai.baseline import Baseline, Settings
from pipelines.validation.openai.recording import can_score, record
from pipelines.validation.openai.server.abilities import Abilities
from pipelines.validation.openai.server.endpoint import Endpoint
from pipelines.validation.openai.server.server import OpenAIServer
from pipelines.validation.openai.verify import Expect, compare
from pipelines.validation.size import Size

Conditions = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One run of the command, with what all forms share.

    Attributes:
        command_line: Arguments of ``draftproof verify``, for the report.
        timeout_s: Longest silence of a server.
        expect: How to judge differences.
        size: What the user chose of the size of the comparison.
        ends_at_s: Clock time at which it ends, in seconds of ``time.monotonic``.
    """

    command_line: Sequence[str]
    timeout_s: float = 600.0
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
            judged = second.abilities
            stages = Stages(
                _num_control_stages(first.abilities, settings) + _num_candidate_stages(judged, settings),
                self.ends_at_s,
            )
            baseline = self._record(first, prompts, settings, stages, with_ids=judged.token_ids)
            return self._compare(baseline, second, f"{candidate.url} beside {control.url}", stages, {})

    def record_control(self, control: Endpoint, prompts: Prompts, settings: Settings) -> Baseline:
        """Record the answers of a control; errors are those of ``compare_servers``."""
        with closing(self._reach(control)) as server:
            stages = Stages(_num_control_stages(server.abilities, settings), self.ends_at_s)
            return self._record(server, prompts, settings, stages, with_ids=True)

    def compare_with_baseline(
        self, baseline: Baseline, digest: str, candidate: Endpoint
    ) -> tuple[list[Section], Conditions]:
        """Compare a server with a baseline; errors are those of ``compare_servers``."""
        recorded = {"sha256": digest, **{name: baseline.conditions[name] for name in ("date", "command")}}
        with closing(self._reach(candidate)) as server:
            title = f"{candidate.url} beside a baseline of {recorded['date'][:10]}"
            stages = Stages(_num_candidate_stages(server.abilities, baseline.settings), self.ends_at_s)
            return self._compare(baseline, server, title, stages, {"baseline": recorded})

    def _reach(self, endpoint: Endpoint) -> OpenAIServer:
        print(f"asking {endpoint.url} what it can tell", flush=True)
        return OpenAIServer(endpoint, self.timeout_s)

    def _record(
        self, control: OpenAIServer, prompts: Prompts, settings: Settings, stages: Stages, *, with_ids: bool
    ) -> Baseline:
        for line in prompts.lines():
            print(line, flush=True)
        context = self._conditions()
        return record(control, prompts, self.size, settings, context, stages, with_ids=with_ids)

    def _compare(
        self, baseline: Baseline, candidate: OpenAIServer, title: str, stages: Stages, more: Conditions
    ) -> tuple[list[Section], Conditions]:
        sections = compare(baseline, candidate, self.expect, stages)
        context = self._conditions(
            recipe=title,
            engines={"control": baseline.control, "candidate": candidate.description},
            prompts=baseline.conditions["prompts"],
            **more,
        )
        return sections, context

    def _conditions(self, **more: Any) -> Conditions:
        command = shlex.join(["draftproof", "verify", *self.command_line])
        return conditions("pipelines.validation", self.command_line, **more) | {"command": command}


def _num_control_stages(able: Abilities, settings: Settings) -> int:
    """Count how often a control is asked all questions: plain ones, as many about features, and samples."""
    return 2 * (2 + able.ends_streams + can_score(able)) + bool(settings.num_sampled)


def _num_candidate_stages(able: Abilities, settings: Settings) -> int:
    """Count the same for a candidate, which is asked plain questions one at a time too."""
    return 1 + 2 * (1 + able.streams) + bool(settings.num_sampled)
