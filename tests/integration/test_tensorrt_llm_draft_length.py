"""Tests of when the loop on NVIDIA's models drafts, as its trials decide; counts are compared, not times.

Run: pytest tests/integration/test_tensorrt_llm_draft_length.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pipelines.client import CompletionRequest
from tests.integration.conftest import grpc_client, target_alone
from tests.stand_in_tensorrt_llm import repository
from tests.stand_in_tensorrt_llm.served import Served
from tests.support.ready_server import ready_server

pytestmark = pytest.mark.triton

NUM_TOKENS = 60


@pytest.fixture
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Return a server without any measurements."""
    directory = repository.render(tmp_path_factory.mktemp("fresh"), repository.recipe())
    with ready_server(directory) as running:
        yield Served(running, directory)


def request(number: int, max_tokens: int = NUM_TOKENS) -> CompletionRequest:
    return CompletionRequest(f"def f{number}(", max_tokens=max_tokens, end_id=-1)


@pytest.mark.long  # tests/unit/speculation/test_draft_length_by_trial.py tests slow drafts in virtual time
def test_a_draft_as_slow_as_the_target_is_left_and_answers_are_one_request(fresh: Served) -> None:
    with fresh.step_s("draft", 0.02), fresh.step_s("target", 0.02), grpc_client(fresh.server) as client:
        with fresh.asked("draft") as drafted:
            client.generate(request(0))
        assert len(drafted) == 3, "one trial"
        for number in range(1, 4):
            client.generate(request(number))
        with fresh.asked("draft") as drafted, fresh.asked("target") as asked:
            answers = [client.generate(request(number)) for number in range(4, 10)]
        # 360 tokens, by which time trials were 128 or 256 tokens apart.
        assert len(drafted) <= 6
        assert len(asked) <= len(answers) + 2 * len(drafted)
        assert not [entry for entry in asked if "cancelled_after" in entry]
        for number, answer in enumerate(answers, 4):
            assert answer.output_ids == target_alone(client, request(number)).output_ids


def test_a_quick_draft_is_used_from_the_first_answer_on(fresh: Served) -> None:
    with fresh.step_s("draft", 0), fresh.step_s("target", 0.15), grpc_client(fresh.server) as client:
        answers = [client.generate(request(number, 24)) for number in range(3)]
        assert all(answer.total_accepted_draft_tokens > 0 for answer in answers)
        with fresh.asked("target") as asked:
            answer = client.generate(request(3, 24))
        assert len(asked) < 0.75 * 24
        assert answer.output_ids == target_alone(client, request(3, 24)).output_ids
