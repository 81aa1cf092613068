"""When the loop on NVIDIA's models drafts: by what trials show. Counts are compared, not times.

Run: pytest tests/integration/test_tensorrt_llm_draft_length.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pipelines.client import CompletionRequest
from pipelines.deploy import Ports, Server
from tests.integration.conftest import grpc_client, target_alone
from tests.stand_in_tensorrt_llm import repository
from tests.stand_in_tensorrt_llm.served import Served

pytestmark = pytest.mark.triton

NUM_TOKENS = 60


@pytest.fixture
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that knows nothing yet."""
    directory = repository.render(tmp_path_factory.mktemp("fresh"), repository.recipe())
    with Server.start(directory, Ports.free()) as running:
        running.wait_ready()
        yield Served(running, directory)


def request(number: int) -> CompletionRequest:
    return CompletionRequest(f"def f{number}(", max_tokens=NUM_TOKENS, end_id=-1)


def test_a_draft_as_slow_as_the_target_is_left_and_answers_are_one_request(fresh: Served) -> None:
    with fresh.step_s("draft", 0.02), fresh.step_s("target", 0.02), grpc_client(fresh.server) as client:
        with fresh.asked("draft") as drafted:
            client.generate(request(0))
        assert len(drafted) == 3, "one trial"
        for number in range(1, 4):
            client.generate(request(number))
        with fresh.asked("draft") as drafted, fresh.asked("target") as asked:
            answers = [client.generate(request(number)) for number in range(4, 10)]
        # 360 tokens, where trials had become 128 or 256 tokens apart.
        assert len(drafted) <= 6
        assert len(asked) <= len(answers) + 2 * len(drafted)
        assert not [entry for entry in asked if "cancelled_after" in entry]
        for number, answer in enumerate(answers, 4):
            assert answer.output_ids == target_alone(client, request(number)).output_ids


def test_a_quick_draft_is_used_from_the_first_answer_on(fresh: Served) -> None:
    with fresh.step_s("draft", 0), fresh.step_s("target", 0.05), grpc_client(fresh.server) as client:
        answers = [client.generate(request(number)) for number in range(3)]
        assert all(answer.total_accepted_draft_tokens > 0 for answer in answers)
        with fresh.asked("target") as asked:
            answer = client.generate(request(3))
        assert len(asked) < 0.75 * NUM_TOKENS
        assert answer.output_ids == target_alone(client, request(3)).output_ids
