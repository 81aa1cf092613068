"""Tests of ``draftproof verify`` with ``--against`` on real Triton servers.

One is a stand-in with NVIDIA's models, tensors and refusals, whose engine rounds differently in every batch;
it runs once with a correct BLS loop and once with a faulty one. The other is our own server, treated as a
foreign one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipelines.bench.reporting.section import Section, joint_verdict
from pipelines.client import CompletionRequest, Timeouts
from pipelines.client.models import ModelCalls, connect_to_models
from pipelines.command_line.prompts import Prompt
from pipelines.deploy.server import Server
from pipelines.errors import DraftproofError, VerificationError
from pipelines.validation.audit.against import Foreign, verify_foreign
from pipelines.validation.audit.nvidia_server import ForeignServer, ModelNames, Replay, ServerTokens
from tests.nvidia_stand_in.language import encode
from tests.nvidia_stand_in.repository import write_repository
from tests.support.ready_server import ready_server

pytestmark = pytest.mark.triton

TIMEOUTS = Timeouts(connect_s=5, read_s=30, total_s=30)


@contextmanager
def served(directory: Path, *, fault: str = "", bls_is_decoupled: bool = False) -> Iterator[Server]:
    write_repository(directory, fault=fault, bls_is_decoupled=bls_is_decoupled)
    with ready_server(directory) as running:
        yield running


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(tmp_path_factory.mktemp("nvidia")) as running:
        yield running


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return a server whose decoupled BLS model keeps a last draft token that the target rejected."""
    with served(
        tmp_path_factory.mktemp("faulty"), fault="keeps_last_draft", bls_is_decoupled=True
    ) as running:
        yield running


def url_of(server: Server) -> str:
    return f"grpc://127.0.0.1:{server.ports.grpc}"


def prompts(count: int) -> tuple[Prompt, ...]:
    rng = np.random.default_rng(0)
    texts = ("".join(rng.choice(list("abcdefghijklmnop "), 12)) for _ in range(count))
    return tuple(Prompt(str(index), text) for index, text in enumerate(texts))


def verify(server: Server, num_prompts: int, **changes: object) -> list[Section]:
    return verify_foreign(
        Foreign(url_of(server), prompts(num_prompts), max_tokens=16, **changes),  # type: ignore[arg-type]
        # Its models have NVIDIA's names, which clients of our servers may not use.
        connect=lambda url: connect_to_models(url, key=server.key),
    )


@pytest.mark.long
def test_a_right_loop_on_kernels_that_depend_on_the_batch_passes(healthy: Server) -> None:
    noise, audit, not_checked = verify(healthy, 480)
    assert audit.verdict == joint_verdict([noise, audit, not_checked]) == "pass", audit.summary
    assert noise.document["differ"] > 0, "the stand-in must have noise, or this test shows nothing"
    assert noise.document["tie_limit"] > 0
    assert audit.document["non_tie_rate_upper_bound"] < 0.01
    assert audit.document["draft_tokens"] > 480
    assert (audit.document["unknown"], audit.document["missing"]) == (0, 0)
    for missing_name in ("token ids", "sampled answers", "why answers end"):
        assert missing_name in not_checked.summary


def test_a_fault_in_the_loop_fails(faulty: Server) -> None:
    noise, audit, _ = verify(faulty, 60)
    assert audit.verdict == "fail", audit.summary
    assert audit.document["non_ties"] > 10
    assert audit.table is not None
    kind, place, margin = (audit.table.rows[0][column] for column in (1, 2, 5))
    assert kind == "non-tie" and place.startswith("character ") and float(margin) > 0.05
    assert noise.verdict == "info"


def test_equality_can_be_expected_of_a_foreign_server(faulty: Server, healthy: Server) -> None:
    _, section, _ = verify(faulty, 20, expect="exact")
    assert section.verdict == "fail"
    _, section, _ = verify(healthy, 5, expect="exact", num_at_once=2)
    assert section.verdict in ("inconclusive", "fail")  # too few prompts, or a tie among them


@pytest.fixture
def calls(healthy: Server) -> Iterator[ModelCalls]:
    made = connect_to_models(url_of(healthy), TIMEOUTS, healthy.key)
    yield made
    made.close()


def test_models_are_described_by_the_server(calls: ModelCalls) -> None:
    bls = calls.describe("tensorrt_llm_bls")
    assert bls.has_batch_dimension and not bls.is_decoupled
    assert bls.inputs["num_draft_tokens"].is_optional and not bls.inputs["text_input"].is_optional
    assert (bls.inputs["text_input"].datatype, bls.inputs["stop_words"].dims) == ("BYTES", (-1,))
    assert bls.outputs["text_output"].dims == (-1,)
    assert calls.describe("tensorrt_llm").inputs["stop_words_list"].dims == (2, -1)
    with pytest.raises(DraftproofError, match="not found"):
        calls.describe("nothing")


def test_the_documented_refusals_are_errors_and_what_we_send_meets_none(calls: ModelCalls) -> None:
    engine, bls = calls.describe("tensorrt_llm"), calls.describe("tensorrt_llm_bls")
    base = {
        "input_ids": engine.tensor("input_ids", [5, 6]),
        "input_lengths": engine.tensor("input_lengths", [2]),
        "request_output_len": engine.tensor("request_output_len", [1]),
        "runtime_top_k": engine.tensor("runtime_top_k", [1]),
    }
    with pytest.raises(DraftproofError, match="must not be empty"):
        calls.infer(engine, {**base, "draft_input_ids": engine.tensor("draft_input_ids", [])})
    with pytest.raises(DraftproofError, match="decoupled mode"):
        calls.infer(engine, {**base, "streaming": engine.tensor("streaming", [True])})
    text = {
        "text_input": bls.tensor("text_input", ["abc"]),
        "max_tokens": bls.tensor("max_tokens", [4]),
        "top_k": bls.tensor("top_k", [1]),
        "num_draft_tokens": bls.tensor("num_draft_tokens", [2]),
    }
    with pytest.raises(DraftproofError, match="no attribute 'any'"):
        calls.infer(bls, text)
    server = ForeignServer(calls)
    answer = server.generate(CompletionRequest("abc", max_tokens=4, num_draft_tokens=2), "tensorrt_llm_bls")
    assert len(answer.text) == 4 and answer.total_draft_tokens > 0 and not server.silent_on_drafting


def test_a_margin_is_the_engines_own(calls: ModelCalls) -> None:
    server = ForeignServer(calls)
    tokens = ServerTokens(server, "preprocessing")
    assert tokens.encode("abc") == encode("abc")
    assert tokens.end_id == 0
    answer = server.generate(CompletionRequest("abc", max_tokens=4), "ensemble")
    replay = Replay(server, ModelNames())
    letters = [letter for letter in "abcdefg" if letter != answer.text[1]]
    prompt = Prompt("a", "abc")
    margins = [
        replay.margin(prompt, answer, replace(answer, text=answer.text[0] + letter)).log_prob_difference
        for letter in letters
    ]
    assert all(margin is not None and margin > 0 for margin in margins)
    same = replay.margin(prompt, answer, answer)
    assert same.log_prob_difference is None and "same tokens" in same.why_unknown


def test_missing_models_are_named_with_the_option_that_fixes_it(healthy: Server) -> None:
    with pytest.raises(VerificationError, match="--model"):
        verify(healthy, 2, names=ModelNames(candidate="nothing"))
    with pytest.raises(VerificationError, match="--control-model"):
        verify(healthy, 2, names=ModelNames(control="nothing"))
    with pytest.raises(VerificationError, match="requires"):
        ForeignServer(connect_to_models(url_of(healthy), key=healthy.key)).generate(
            CompletionRequest("abc"), "tensorrt_llm"
        )


def test_our_own_server_is_verified_as_a_strangers(server: Server) -> None:
    ours = ModelNames("generate", "generate_target", "target")
    found = verify(server, 12, names=ours, num_at_once=3, draft_lengths=(3,), expect="exact")
    _, section, _ = found
    assert section.verdict == "inconclusive", section.summary  # 12 prompts are too few for the limit
    assert section.document["differ"] == 0 and section.document["prompts"] == 12
