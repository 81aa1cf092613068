"""Tests of sampling parameters against a second implementation and against transformers.

The reference (``tests/exact/reference.py``) is plain loops over Python floats, written from the documentation
of the parameters.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipelines.errors import EngineFailedError, InvalidRequestError
from pipelines.speculation.request import GenerationRequest
from pipelines.speculation.sampling.draws import distribution
from pipelines.speculation.sampling.params import SamplingParams
from pipelines.speculation.sampling.sampler import Sampler
from pipelines.text.bad_words import BadWords, Completions
from pipelines.text.vocabulary import Vocabulary
from tests.exact.reference import adjusted_logits, sampled_scores, softmax
from tests.support.examples import examples

pytestmark = pytest.mark.xdist_group("torch")

END_ID = 0
LETTERS = Vocabulary((b"", b"a", b"b", b"c", b"ab", b"ba", b"aa", b"cab", b"bc", b"d", b"e", b"ca"))
VOCAB_SIZE = LETTERS.size
MARGIN = 1e-9

TOKENS = st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=8)
# Few different values, so that tokens tie; or any values.
LOGITS = st.one_of(
    st.lists(st.sampled_from([-2.0, -0.5, 0.0, 0.5, 3.0]), min_size=VOCAB_SIZE, max_size=VOCAB_SIZE),
    st.lists(st.floats(-30, 30, width=32), min_size=VOCAB_SIZE, max_size=VOCAB_SIZE),
)
PENALTIES = st.sampled_from([0.0, 0.25, -0.7, 1.1, 2.0, -2.0])
SAMPLING = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.floats(0.05, 5),
        "top_k": st.integers(1, VOCAB_SIZE + 2),
        "top_p": st.floats(0.01, 1),
        "min_p": st.floats(0, 1),
        "repetition_penalty": st.sampled_from([0.5, 0.9, 1.2, 3.0]),
        "presence_penalty": PENALTIES,
        "frequency_penalty": PENALTIES,
        "min_tokens": st.integers(0, 9),
        "logit_bias": st.dictionaries(st.integers(0, VOCAB_SIZE - 1), st.floats(-100, 100)).map(
            lambda biases: tuple(biases.items())
        ),
    },
)
BAD_WORDS = st.lists(st.sampled_from([b"a", b"ab", b"bca", b"aaa", b"cabba", b"e"]), max_size=3, unique=True)


def make_request(
    prompt: list[int], output: list[int], sampling: dict[str, Any], bad_words: tuple[bytes, ...] = ()
) -> GenerationRequest:
    return GenerationRequest(
        "r",
        np.array([*prompt, *output], np.int32),
        1,
        prompt_length=len(prompt),
        sampling=SamplingParams(**sampling),
        end_ids=(END_ID,),
        bad_words=bad_words,
    )


def make_sampler(request: GenerationRequest, num_pushed: int = 0) -> Sampler:
    """Return the sampler of a request; its last ``num_pushed`` tokens are pushed one by one."""
    ids = request.input_ids
    begun = ids[: len(ids) - num_pushed]
    bans = None
    if request.bad_words:
        output_ids = begun[request.num_prompt_tokens :].tolist()
        bans = BadWords(request.bad_words, Completions(LETTERS), output_ids)
    known = GenerationRequest(
        "r",
        begun,
        1,
        prompt_length=request.num_prompt_tokens,
        sampling=request.sampling,
        end_ids=request.end_ids,
        bad_words=request.bad_words,
    )
    sampler = Sampler(known, VOCAB_SIZE, bans)
    for token_id in ids[len(begun) :].tolist():
        sampler.push(token_id)
    return sampler


def is_near_a_border(adjusted: list[float], sampling: SamplingParams) -> bool:
    """Return whether a last bit decides what min_p or top_p keep."""
    scores = [score / sampling.temperature for score in adjusted]
    best = max(scores)
    ratios = [math.exp(score - best) for score in scores]
    if sampling.min_p and any(abs(ratio - sampling.min_p) < MARGIN and ratio != 1.0 for ratio in ratios):
        return True
    whole = SamplingParams(temperature=sampling.temperature, min_p=sampling.min_p, top_k=sampling.top_k)
    ranked = sorted(softmax(sampled_scores(adjusted, whole)), reverse=True)
    sums = np.cumsum(ranked)
    return sampling.top_p < 1 and bool((np.abs(sums - sampling.top_p) < MARGIN).any())


@examples(300)
@given(LOGITS, TOKENS.filter(len), TOKENS, SAMPLING, BAD_WORDS, st.data())
def test_any_parameters_give_the_references_distribution(
    logits: list[float],
    prompt: list[int],
    output: list[int],
    sampling: dict[str, Any],
    bad_words: list[bytes],
    data: st.DataObject,
) -> None:
    """The same tokens are allowed with the same scores; greedy, the same token is chosen."""
    text = LETTERS.join(output)
    assume(not any(word in text for word in bad_words))
    request = make_request(prompt, output, sampling, tuple(bad_words))
    sampler = make_sampler(request, data.draw(st.integers(0, len(output)), "tokens pushed"))
    row = np.array(logits, np.float32)
    adjusted = adjusted_logits(row.tolist(), prompt, output, request, LETTERS.bytes_of)
    if max(adjusted) == -math.inf:
        with pytest.raises(InvalidRequestError, match="forbids every token"):
            sampler.choose(row)
        return
    if request.sampling.is_greedy:
        assert sampler.choose(row) == adjusted.index(max(adjusted))
        return
    assume(not is_near_a_border(adjusted, request.sampling))
    expected = np.array(sampled_scores(adjusted, request.sampling))
    found = sampler.distribution_scores(row)
    assert np.flatnonzero(np.isfinite(found)).tolist() == np.flatnonzero(np.isfinite(expected)).tolist()
    allowed = np.isfinite(expected)
    np.testing.assert_allclose(found[allowed], expected[allowed], rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(distribution(found), softmax(expected.tolist()), rtol=1e-12, atol=1e-15)


@given(LOGITS, st.sampled_from([{"top_k": 1}, {"top_k": 5}, {"top_p": 0.3}, {"min_p": 0.5}]))
def test_tokens_that_tie_are_left_out_from_the_highest_id_on(
    logits: list[float], sampling: dict[str, Any]
) -> None:
    """If an id is kept with a score, every lower id with the same score is kept too."""
    row = np.array(logits, np.float32)
    scores = make_sampler(make_request([1], [], {"temperature": 1.0, **sampling})).distribution_scores(row)
    for value in set(logits):
        kept = np.isfinite(scores[np.array(logits) == value])
        assert not (~kept[:-1] & kept[1:]).any()


@pytest.mark.parametrize(("top_p", "num_kept"), [(0.25, 3), (0.5, 6), (0.5 + 1e-9, 7), (0.75, 9), (1.0, 12)])
def test_top_p_keeps_the_fewest_tokens_that_reach_it_exactly(top_p: float, num_kept: int) -> None:
    """Twelve equal tokens have exact sums: the border that the other tests leave out."""
    sampler = make_sampler(make_request([1], [], {"temperature": 1.0, "top_p": top_p}))
    scores = sampler.distribution_scores(np.zeros(VOCAB_SIZE, np.float32))
    assert np.flatnonzero(np.isfinite(scores)).tolist() == list(range(num_kept))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    "sampling", [{}, {"repetition_penalty": 1.3}, {"logit_bias": ((0, 1.0),)}, {"top_k": 2, "top_p": 0.5}]
)
def test_logits_that_are_not_finite_fail(bad: float, temperature: float, sampling: dict[str, Any]) -> None:
    row = np.zeros(VOCAB_SIZE, np.float32)
    sampler = make_sampler(make_request([3], [4], {"temperature": temperature, **sampling}))
    assert sampler.choose(row) < VOCAB_SIZE
    row[3] = bad
    with pytest.raises(EngineFailedError, match="not finite"):
        sampler.choose(row)
    if temperature:
        with pytest.raises(EngineFailedError, match="not finite"):
            sampler.verify(np.zeros(VOCAB_SIZE, np.float32), 3, row)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_request_that_forbids_every_token_is_refused(temperature: float) -> None:
    sampling = {"temperature": temperature, "min_tokens": 1}
    request = make_request([1], [], sampling, (b"a", b"b", b"c", b"d", b"e"))
    with pytest.raises(InvalidRequestError, match="forbids every token"):
        make_sampler(request).choose(np.zeros(VOCAB_SIZE, np.float32))


def test_the_smallest_temperature_of_the_wire_is_almost_greedy() -> None:
    """1e-45 is float32's smallest number: nothing overflows on the way to the choice."""
    row = np.array([*range(VOCAB_SIZE)], np.float32) * 1e30
    sampler = make_sampler(make_request([1], [], {"temperature": float(np.float32(1e-45)), "top_p": 0.9}))
    assert sampler.choose(row) == VOCAB_SIZE - 1


# Distinct logits, because transformers keeps all tokens that tie for the last place of top_k.
DISTINCT = st.permutations(range(VOCAB_SIZE)).map(lambda ranks: [0.37 * rank - 2.1 for rank in ranks])


def processed_by_transformers(row: np.ndarray, request: GenerationRequest, prompt_length: int) -> np.ndarray:
    """Return float64 [vocab_size], after one processor after another in our order."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    sampling = request.sampling
    processors: list[Any] = []
    if request.bad_words:
        banned = [[LETTERS.bytes_of.index(word)] for word in request.bad_words]
        processors.append(transformers.NoBadWordsLogitsProcessor(banned, eos_token_id=END_ID))
    if sampling.min_tokens:
        processors.append(
            transformers.MinNewTokensLengthLogitsProcessor(prompt_length, sampling.min_tokens, END_ID)
        )
    if sampling.logit_bias:
        biases = {(token_id,): bias for token_id, bias in sampling.logit_bias}
        processors.append(transformers.SequenceBiasLogitsProcessor(biases))
    if sampling.repetition_penalty != 1:
        processors.append(transformers.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    if sampling.temperature not in (0, 1):
        processors.append(transformers.TemperatureLogitsWarper(sampling.temperature))
    if sampling.min_p:
        processors.append(transformers.MinPLogitsWarper(sampling.min_p))
    if sampling.top_k:
        processors.append(transformers.TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        processors.append(transformers.TopPLogitsWarper(sampling.top_p))
    scores = torch.tensor(row.astype(np.float64))[None]
    for processor in processors:
        scores = processor(torch.tensor(request.input_ids.astype(np.int64))[None], scores)
    found: np.ndarray = scores[0].numpy()
    return found


@pytest.mark.filterwarnings("ignore")  # warnings of torch and transformers are not ours to fix
@pytest.mark.parametrize(
    "parameters",
    [
        {"temperature": st.floats(0.2, 3).filter(lambda value: value != 1)},
        {"top_k": st.integers(1, VOCAB_SIZE)},
        {"top_p": st.floats(0.05, 0.99)},
        {"min_p": st.floats(0.01, 0.99)},
        {"repetition_penalty": st.floats(0.3, 3)},
        {"min_tokens": st.integers(1, 9)},
        {"logit_bias": st.sampled_from([((2, 1.5),), ((4, -3.0), (7, 0.5))])},
        {"bad_words": st.sampled_from([(b"d",), (b"e", b"d")])},
        {
            "temperature": st.floats(0.2, 3),
            "top_k": st.integers(2, VOCAB_SIZE),
            "top_p": st.floats(0.05, 0.99),
            "min_p": st.floats(0.01, 0.5),
            "repetition_penalty": st.floats(0.3, 3),
            "min_tokens": st.integers(1, 9),
            "bad_words": st.just((b"d",)),
        },
    ],
    ids=lambda parameters: " ".join(parameters),
)
def test_parameters_do_what_transformers_does(parameters: dict[str, st.SearchStrategy[Any]]) -> None:
    @examples(25)
    @given(DISTINCT, TOKENS.filter(len), TOKENS, st.fixed_dictionaries(parameters))
    def compare(logits: list[float], prompt: list[int], output: list[int], drawn: dict[str, Any]) -> None:
        bad_words = drawn.pop("bad_words", ())
        output = [token_id for token_id in output if LETTERS.bytes_of[token_id] not in bad_words]
        request = make_request(prompt, output, {"temperature": 1.0, **drawn}, bad_words)
        row = np.array(logits, np.float32)
        adjusted = adjusted_logits(row.tolist(), prompt, output, request, LETTERS.bytes_of)
        assume(not is_near_a_border(adjusted, request.sampling))
        # The reference and transformers ban words differently; they agree only if words are tokens.
        expected = processed_by_transformers(row, request, len(prompt))
        found = make_sampler(request).distribution_scores(row)
        assert np.isfinite(found).tolist() == np.isfinite(expected).tolist()
        allowed = np.isfinite(expected)
        np.testing.assert_allclose(found[allowed], expected[allowed], rtol=1e-12, atol=1e-12)

    compare()
