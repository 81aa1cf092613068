"""Tests of the adapter to NVIDIA's models: requests, answers, and the tokens' distribution."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import model_config_pb2

from build.files import write_manifest
from pipelines.errors import EngineFailedError, EngineLoadError
from pipelines.speculation.draft_length.draft_plan import FixedDraftLength
from pipelines.speculation.loop import Round, speculate
from pipelines.speculation.request import GenerationRequest
from pipelines.speculation.sampling.params import SamplingParams
from pipelines.speculation.watched_draft import WatchedDraft
from pipelines.text.vocabulary import Vocabulary
from pipelines.triton.tensorrt_llm import engines as tensorrt_llm_engines
from pipelines.triton.tensorrt_llm.end_of_output import OutputEnd
from pipelines.triton.tensorrt_llm.engines import TensorRtLlmEngines
from pipelines.triton.tensorrt_llm.tensors import new_tokens, plain_tensors
from tests.stand_in_tensorrt_llm.in_process import InProcessCalls, parameters
from tests.stand_in_tensorrt_llm.repository import recipe
from tests.unit.tensorrt_llm.test_repository import configs_of, render

PROMPT = np.array([5, 9, 200, 31], np.int32)
GREEDY = SamplingParams()


def request(max_tokens: int = 20, **fields: Any) -> GenerationRequest:
    return GenerationRequest(**{"request_id": "r", "input_ids": PROMPT, "max_tokens": max_tokens, **fields})


@pytest.fixture
def calls() -> InProcessCalls:
    return InProcessCalls()


@contextmanager
def running(directory: Path, calls: InProcessCalls, **changes: str) -> Iterator[TensorRtLlmEngines]:
    engines = TensorRtLlmEngines(parameters(directory, **changes), calls)  # type: ignore[arg-type]
    engines.start()
    try:
        yield engines
    finally:
        engines.loop.stop()


@pytest.mark.parametrize("role", ["draft", "target"])
@pytest.mark.parametrize("damage", ["file", "exchange"])
def test_engines_are_checked_when_the_loop_is_loaded(
    tmp_path: Path, calls: InProcessCalls, role: str, damage: str
) -> None:
    directories = {name: tmp_path / name for name in ("draft", "target")}
    changes = {}
    for name, directory in directories.items():
        directory.mkdir()
        (directory / "rank0.engine").write_text(name)
        asked = parameters(directory)
        for key in ("engine_dir", "engine_digest"):
            changes[f"{name}_{key}"] = asked.text(f"{name}_{key}")
    with running(tmp_path / "target", calls, **changes):
        pass
    (directories[role] / "rank0.engine").write_text("damaged")
    if damage == "exchange":
        write_manifest(directories[role], {})
    with pytest.raises(EngineLoadError, match="was changed" if damage == "file" else "holds another engine"):
        TensorRtLlmEngines(parameters(tmp_path / "target", **changes), calls)  # type: ignore[arg-type]


@pytest.fixture
def engines(tmp_path: Path, calls: InProcessCalls) -> Iterator[TensorRtLlmEngines]:
    with running(tmp_path, calls) as made:
        yield made


async def rounds_of(
    engines: TensorRtLlmEngines, asked: GenerationRequest, num_draft_tokens: int, *, by_ratio: bool = False
) -> list[Round]:
    loop = speculate(
        asked,
        engines.draft,
        engines.target,
        FixedDraftLength(num_draft_tokens),
        stream=engines.stream if num_draft_tokens else engines.stream_alone,
        use_draft_logits=by_ratio,
    )
    return [outcome async for outcome in loop]


def tokens(
    engines: TensorRtLlmEngines, asked: GenerationRequest, num_draft_tokens: int, **options: bool
) -> list[int]:
    found = asyncio.run(rounds_of(engines, asked, num_draft_tokens, **options))
    return [int(token) for outcome in found for token in outcome.token_ids]


TYPES = {
    model_config_pb2.TYPE_INT32: np.int32,
    model_config_pb2.TYPE_UINT64: np.uint64,
    model_config_pb2.TYPE_FP32: np.float32,
    model_config_pb2.TYPE_BOOL: np.bool_,
}
EVERYTHING = SamplingParams(
    0.7, 5, 0.9, 0.0, 1.2, 0.5, 0.25, 3, logit_bias=((4, 1.5), (9, -2.0)), seed=2**64 - 1
)


@pytest.mark.parametrize("sampling", [GREEDY, EVERYTHING], ids=["greedy", "everything"])
def test_every_tensor_is_one_of_1_2_1_with_its_type_and_shape(
    engines: TensorRtLlmEngines, calls: InProcessCalls, sampling: SamplingParams, tmp_path: Path
) -> None:
    config = configs_of(render(tmp_path / "rendered", recipe()))["target"]
    known = {tensor.name: tensor for tensor in config.input}
    asked = request(bad_words=(b"zz",), num_log_probs=None, sampling=sampling, end_ids=(0,))
    tokens(engines, asked, 0)
    asyncio.run(rounds_of(engines, request(sampling=sampling, end_ids=(0,)), 3, by_ratio=True))
    sent = set()
    for model, tensors in calls.asked:
        assert model in ("draft", "target")
        for name, array in tensors.items():
            sent.add(name)
            assert array.dtype == TYPES[known[name].data_type], name
            shapes = zip((1, *known[name].dims), array.shape, strict=True)
            assert all(wanted in (-1, size) for wanted, size in shapes), name
    expected = {"input_ids", "input_lengths", "request_output_len", "exclude_input_in_output", "streaming"}
    expected |= {"end_id", "runtime_top_k", "draft_input_ids", "bad_words_list"}
    if sampling is EVERYTHING:
        expected |= {"temperature", "runtime_top_p", "seed", "repetition_penalty", "presence_penalty"}
        expected |= {
            "frequency_penalty",
            "min_tokens",
            "embedding_bias",
            "draft_logits",
            "return_generation_logits",
        }
    assert sent == expected
    names = {tensor.name for tensor in config.output}
    assert {"output_ids", "sequence_length", "output_log_probs", "generation_logits"} <= names


@pytest.mark.parametrize(
    "num_draft_tokens", [pytest.param(length, marks=pytest.mark.long) for length in (0, 1, 8)] + [4]
)
def test_each_end_token_ends_the_output_alone_and_in_rounds(
    engines: TensorRtLlmEngines, calls: InProcessCalls, num_draft_tokens: int
) -> None:
    """The backend takes one end token. The others are words to the target alone, and cut a round."""
    ended = {0: 0, 1: 0}
    for first in range(20):
        prompt = np.array([first, 7, 3], np.int32)
        endless = tokens(engines, request(90, input_ids=prompt), 0)
        asked = request(90, input_ids=prompt, end_ids=(0, 1))
        found = asyncio.run(rounds_of(engines, asked, num_draft_tokens))
        expected = next((i for i, token in enumerate(endless) if token in ended), 90)
        assert [int(token) for outcome in found for token in outcome.token_ids] == endless[:expected]
        assert found[-1].finish_reason == ("stop" if expected < 90 else "length")
        if expected < 90:
            ended[endless[expected]] += 1
    assert min(ended.values()) > 0, "the texts must end with either, or this shows less than it says"
    sent = [tensors for model, tensors in calls.asked if model == "target" and "end_id" in tensors]
    assert {tensors["end_id"].item() for tensors in sent} == {0}
    words = [tensors["stop_words_list"].tolist() for tensors in sent if "stop_words_list" in tensors]
    assert words == [[[[1], [1]]]] * 20, "the answer that each request begins with"


def test_a_stop_word_in_the_middle_of_a_round_cuts_it(engines: TensorRtLlmEngines) -> None:
    whole = tokens(engines, request(30, end_ids=(0,)), 0)
    spelled = [engines.vocabulary.bytes_of[token] for token in whole]
    word = spelled[9][-1:] + spelled[10][:1]
    asked = request(30, end_ids=(0,), stop_words=(b"never there", word))
    for num_draft_tokens in (0, 1, 4, 8):
        cut = tokens(engines, asked, num_draft_tokens)
        assert cut == whole[: len(cut)] and word in engines.vocabulary.join(cut)
        assert word not in engines.vocabulary.join(cut[:-1])


def law_of_second_token(
    engines: TensorRtLlmEngines, sampling: SamplingParams, num_draft_tokens: int, count: int
) -> dict[tuple[int, ...], float]:
    found: dict[tuple[int, ...], int] = {}

    async def ask_all() -> None:
        for seed in range(count):
            asked = request(3, sampling=SamplingParams(**{**vars(sampling), "seed": seed}))
            ids = [
                int(token)
                for outcome in await rounds_of(
                    engines, asked, num_draft_tokens, by_ratio=num_draft_tokens > 0
                )
                for token in outcome.token_ids
            ]
            found[tuple(ids[1:])] = found.get(tuple(ids[1:]), 0) + 1

    asyncio.run(ask_all())
    return {ids: number / count for ids, number in found.items()}


def distance(first: dict[tuple[int, ...], float], second: dict[tuple[int, ...], float]) -> float:
    return sum(abs(first.get(ids, 0) - second.get(ids, 0)) for ids in {*first, *second}) / 2


HOT = SamplingParams(temperature=2.5, top_k=3)


@pytest.mark.long
def test_sampled_rounds_follow_the_targets_distribution(engines: TensorRtLlmEngines) -> None:
    alone = law_of_second_token(engines, HOT, 0, 2500)
    again = law_of_second_token(engines, HOT, 2, 2500)
    # Two samples of one distribution of some 27 outcomes differ by about 0.06; 0.11 has a chance below 1 in
    # 10000.
    assert len(alone) > 15
    assert distance(alone, again) < 0.11


@pytest.mark.long
def test_unscaled_draft_logits_would_change_the_distribution(
    engines: TensorRtLlmEngines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVIDIA's own loop passes them before the temperature; the test above must be able to detect that."""
    right = tensorrt_llm_engines.proposal_logits

    def unscaled(logits: Any, num_tokens: int, temperature: float, *others: Any) -> Any:
        return right(logits, num_tokens, 1.0, *others)

    alone = law_of_second_token(engines, HOT, 0, 2500)
    monkeypatch.setattr(tensorrt_llm_engines, "proposal_logits", unscaled)
    assert distance(alone, law_of_second_token(engines, HOT, 2, 2500)) > 0.13


def test_a_draft_without_logits_refuses_sampled_requests_and_goes_on_with_greedy_ones(tmp_path: Path) -> None:
    """An engine that was built without the flag: one client that samples must not stop the others."""
    calls = InProcessCalls(draft_gathers_logits=False)
    with running(tmp_path, calls) as engines:
        draft = WatchedDraft(engines.draft)

        async def num_drafted(asked: GenerationRequest, *, by_ratio: bool) -> int:
            lengths = FixedDraftLength(4)
            loop = speculate(
                asked, draft, engines.target, lengths, stream=engines.stream, use_draft_logits=by_ratio
            )
            return sum([outcome.num_draft_tokens async for outcome in loop])

        sampled = request(12, sampling=SamplingParams(temperature=0.5, seed=4))
        assert asyncio.run(num_drafted(sampled, by_ratio=True)) == 0
        assert asyncio.run(num_drafted(request(12), by_ratio=False)) > 0
    assert (draft.num_refusals, draft.num_failures, draft.is_available) == (1, 0, True)


def test_logits_are_fitted_to_the_targets_columns(tmp_path: Path) -> None:
    calls = InProcessCalls(draft_columns=2050, target_columns=2056)
    sampling = SamplingParams(temperature=0.5, seed=4, logit_bias=((3, 1.0),))
    with running(tmp_path, calls, padded_vocab_size="2056", draft_padded_vocab_size="2050") as engines:
        asyncio.run(rounds_of(engines, request(12, sampling=sampling), 3, by_ratio=True))
    handed = [tensors["draft_logits"] for _, tensors in calls.asked if "draft_logits" in tensors]
    assert handed and all(logits.shape[2] == 2056 for logits in handed)
    weights = np.exp(handed[0][0, 0].astype(np.float64) - handed[0].max())
    assert weights[2048:].sum() == 0


def test_each_round_has_noise_of_its_own_the_bias_and_its_input(
    engines: TensorRtLlmEngines, calls: InProcessCalls
) -> None:
    sampling = SamplingParams(temperature=1.0, seed=11, logit_bias=((77, 9.0), (5, -3.0)))
    first, again = (tokens(engines, request(40, sampling=sampling), 3, by_ratio=True) for _ in range(2))
    assert first == again
    rounds = calls.asked[: len(calls.asked) // 2]
    seeds = [tensors["seed"].item() for _, tensors in rounds]
    assert len(set(seeds)) == len(seeds) > 10 and 11 not in seeds
    assert all("embedding_bias" in tensors for model, tensors in rounds if model == "target")
    assert not any(tensors["exclude_input_in_output"].item() for _, tensors in rounds)


def test_an_answer_that_lost_its_input_is_an_error() -> None:
    lost = {"sequence_length": np.array([[3]]), "output_ids": np.array([[[1, 2, 3]]])}
    with pytest.raises(EngineFailedError, match="begin with its input"):
        new_tokens(lost, request())


def test_a_round_that_drafts_nothing_asks_for_no_empty_draft(
    engines: TensorRtLlmEngines, calls: InProcessCalls
) -> None:
    asyncio.run(rounds_of(engines, request(1), 8))
    asyncio.run(engines.target(request(1)))
    assert [model for model, _ in calls.asked] == ["target", "target"]
    assert not any("draft_input_ids" in tensors for _, tensors in calls.asked)
    with pytest.raises(EngineFailedError, match=r"mTokens\.empty"):  # the error that it would cause
        tensors = {**calls.asked[-1][1], "draft_input_ids": np.empty((1, 0), np.int32)}
        asyncio.run(calls.whole("target", tensors, ()))


def test_a_bad_word_in_other_tokens_is_an_error() -> None:
    vocabulary = Vocabulary((b"", b"b", b"a", b"d", b"bad"))
    end = OutputEnd(request(bad_words=(b"bad",)), vocabulary)
    end.take(np.array([1, 2], np.int32))
    with pytest.raises(EngineFailedError, match="other tokens"):
        end.take(np.array([3], np.int32))


@pytest.mark.parametrize(("num_known", "left"), [(0, 3), (2, 1), (3, None), (5, None)])
def test_an_answer_that_goes_on_has_only_the_rest_of_min_tokens_to_wait_for(
    num_known: int, left: int | None
) -> None:
    asked = request(sampling=SamplingParams(min_tokens=3))
    known = np.concatenate((asked.input_ids, np.ones(num_known, np.int32)))
    asked = replace(asked, input_ids=known, prompt_length=len(asked.input_ids))
    tensors = plain_tensors(asked, 16, (), streaming=True)
    assert (tensors["min_tokens"].item() if "min_tokens" in tensors else None) == left


def test_stop_words_begin_after_min_tokens() -> None:
    vocabulary = Vocabulary((b"", b"a", b"b"))
    asked = request(stop_words=(b"ab",), sampling=SamplingParams(min_tokens=3))
    end = OutputEnd(asked, vocabulary)
    kept, is_stopped = end.take(np.array([1, 2, 1, 2, 1, 2, 1], np.int32))
    assert (kept.tolist(), is_stopped) == ([1, 2, 1, 2, 1, 2], True)
    going_on = GenerationRequest("r", np.array([9, 1, 2, 1, 2, 1], np.int32), 4, 1, stop_words=(b"ab",))
    assert OutputEnd(going_on, vocabulary).take(np.array([2, 1], np.int32))[1]
