"""Tests of the service through OpenAI's own client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.support.stand_in_openai import stand_in_openai
from tests.unit.upstreams.running import running

pytestmark = pytest.mark.long

MODEL = "stand-in"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[openai.OpenAI]:
    with (
        stand_in_openai() as server,
        running(tmp_path, {"url": server.url}) as service,
        openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0) as found,
    ):
        yield found


def test_the_client_reads_responses_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.responses.create(model=MODEL, input="hello", temperature=0)
    assert (whole.status, bool(whole.output_text)) == ("completed", True)
    events = list(client.responses.create(model=MODEL, input="hello", temperature=0, stream=True))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert (text, events[-1].type) == (whole.output_text, "response.completed")


def test_the_client_reads_chats_and_models(client: openai.OpenAI) -> None:
    question = [{"role": "user", "content": "hello"}]
    answer = client.chat.completions.create(model=MODEL, messages=question, temperature=0)  # type: ignore[call-overload]
    assert answer.choices[0].message.content
    assert [each.id for each in client.models.list()] == [MODEL]


def test_the_client_gets_an_error_for_what_is_not_passed_on(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="this path is not passed on"):
        client.embeddings.create(model=MODEL, input="hello")
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        client.responses.create(model=MODEL, input="hello", previous_response_id="resp_1")
