"""Tests of grammars: masks that depend on the output alone, forced tokens, and guides that are refused."""

from __future__ import annotations

import itertools
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import InvalidRequestError
from pipelines.text import grammar as grammar_module
from pipelines.text import guide_trial as guide_trial_module
from pipelines.text import guides as guides_module
from pipelines.text.grammar import RequestGrammar, RequestGrammarState
from pipelines.text.guide_trial import MOST_FORCED_CHARACTERS, NICENESS, check_costs
from pipelines.text.guides import GrammarCompiler, Guide
from pipelines.text.prompt_tokenizer import PromptTokenizer
from tests.attacks.guides import chain_of_references, chain_of_rules, words
from tests.support.examples import examples
from tests.support.tiny_engines import DEMO_TOKENIZER

TOKENIZER = PromptTokenizer(DEMO_TOKENIZER.read_bytes(), DEMO_TOKENIZER)
VOCABULARY = TOKENIZER.vocabulary
VOCAB_SIZE = VOCABULARY.size + 3  # engines may have more logits than tokens
PERSON = json.dumps(
    {
        "type": "object",
        "properties": {
            "full_name": {"type": "string"},
            "age": {"type": "integer", "minimum": 0},
            "tags": {"type": "array", "items": {"enum": ["alpha", "beta"]}},
        },
        "required": ["full_name", "age", "tags"],
        "additionalProperties": False,
    }
)
GUIDES = (
    Guide("json_schema", PERSON),
    Guide("json", ""),
    Guide("regex", r"(\d{3}-)+[a-zé]{2,}"),
    Guide("choice", '["yes", "yes, of course", "no"]'),
    Guide("ebnf_grammar", 'root ::= "a" root "b" | "é"'),
    Guide("lark_grammar", 'start: /[a-z]+/ "=" %json {"type": "number"}'),
)


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def new_compiler() -> GrammarCompiler:
    return GrammarCompiler(VOCABULARY, VOCAB_SIZE, lambda: encode)


COMPILER = new_compiler()


def ids(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, np.int32)


@examples(30)
@given(guide=st.sampled_from(GUIDES), data=st.data())
def test_a_mask_depends_on_nothing_but_the_output(guide: Guide, data: st.DataObject) -> None:
    """One state proposes, goes back and looks ahead; another sees the output for the first time."""
    grammar = COMPILER.compile(guide)
    state = grammar.after(ids([]))
    output: list[int] = []
    for _ in range(25):
        fresh = new_compiler().compile(guide).after(ids(output)) if data.draw(st.booleans()) else None
        if data.draw(st.booleans()):
            walk = list(output)
            for _ in range(data.draw(st.integers(0, 4))):  # a proposal, which another state follows
                proposal = grammar.after(ids(walk))
                choices = np.flatnonzero(proposal.allowed())
                if not len(choices) or proposal.is_complete:
                    break
                walk.append(int(data.draw(st.sampled_from(choices.tolist()))))
            state.look_ahead(ids(walk[len(output) :]), data.draw(st.sampled_from([0.0, 1.0])))
            grammar.forced_after(ids(output))
        mask = state.allowed()
        assert mask.shape == (VOCAB_SIZE,)
        if fresh is not None:
            assert np.array_equal(fresh.allowed(), mask)
            assert (fresh.may_end, fresh.is_complete) == (state.may_end, state.is_complete)
        choices = np.flatnonzero(mask)
        if state.is_complete:
            assert state.may_end and not len(choices)
            return
        token_id = int(data.draw(st.sampled_from(choices.tolist())))
        forced = grammar.forced_after(ids(output)).tolist()
        if fresh is not None:
            assert forced == new_compiler().compile(guide).forced_after(ids(output)).tolist()
        assert not forced or choices.tolist() == forced[:1]
        state.push(token_id)
        output.append(token_id)


def test_an_answer_ends_only_where_its_guide_lets_it() -> None:
    state = COMPILER.compile(Guide("regex", "ab+")).after(ids([]))
    found = [state.may_end]
    for letter in "abb":
        state.push(encode(letter)[0])
        found.append(state.may_end)
    assert found == [False, False, True, True]


def test_forced_text_is_written_in_the_tokenizers_own_tokens() -> None:
    grammar = COMPILER.compile(GUIDES[0])
    begin = encode('{"')
    forced = grammar.forced_after(ids([])).tolist()
    text = VOCABULARY.join(forced).decode()
    assert forced and '{"full_name":'.startswith(text) and forced[0] == begin[0]


def test_of_a_long_forced_text_the_tokenizer_gets_a_piece_at_a_time() -> None:
    """Else each mask takes as long as cutting the whole text into tokens."""
    text = words(3 * MOST_FORCED_CHARACTERS)
    asked: list[int] = []

    def recorded(text: str) -> list[int]:
        asked.append(len(text))
        return encode(text)

    compiler = GrammarCompiler(VOCABULARY, VOCAB_SIZE, lambda: recorded)
    grammar = compiler.compile(Guide("choice", json.dumps([text])))
    state = grammar.after(ids([]))
    expected = encode(text)
    for number, token_id in enumerate(expected):
        assert np.flatnonzero(state.allowed()).tolist() == [token_id]
        if not number % 100:
            forced = grammar.forced_after(ids(expected[:number])).tolist()
            assert len(forced) > 9 and forced[:-4] == expected[number : number + len(forced) - 4]
        state.push(token_id)
    assert state.is_complete and max(asked) == MOST_FORCED_CHARACTERS


def test_control_without_a_tokenizer_masks_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The brace is forced, the mask is that of the text after it, and none of its tokens could follow."""
    monkeypatch.setattr(guides_module._Tokens, "__call__", lambda self, text: [])
    with pytest.raises(InvalidRequestError, match="cannot be followed"):
        new_compiler().compile(GUIDES[0])


def test_spaces_between_the_parts_of_json_are_limited() -> None:
    """Some models would write them to the end of the answer."""
    grammar = COMPILER.compile(GUIDES[0])
    written = encode('{"full_name":') + encode(" ") * 32
    after = np.flatnonzero(grammar.after(ids(written)).allowed()).tolist()
    assert after and not any(VOCABULARY.bytes_of[token_id].isspace() for token_id in after)


def test_special_tokens_and_the_columns_behind_the_vocabulary_are_never_allowed() -> None:
    mask = COMPILER.compile(Guide("regex", "(.|\n)*")).after(ids([])).allowed()
    assert mask.any() and not mask[VOCABULARY.size :].any()
    assert not mask[list(VOCABULARY.special)].any()


@pytest.mark.parametrize(
    ("guide", "found"),
    [
        (Guide("json_schema", '{"type": "strin"}'), "strin"),
        (Guide("json_schema", '{"type": '), "Expecting value"),
        (Guide("json_schema", '{"properties": {"a": {"$ref": "#/x"}}}'), "/x"),
        (Guide("json_schema", '{"not": {"type": "string"}}'), '"not"'),
        (Guide("regex", "(a"), "unclosed group"),
        (Guide("regex", ""), "allows no text"),
        (Guide("choice", '"yes"'), "list of texts"),
        (Guide("choice", "[]"), "list of texts"),
        (Guide("choice", '["a", 1]'), "list of texts"),
        (Guide("lark_grammar", "start: missing"), "missing"),
        (Guide("xml", "<a/>"), "'xml'"),
        (Guide("regex", "a" * 300_000), "300000 bytes"),
        (Guide("ebnf_grammar", "\n" * 5000), "5000 bytes"),  # would take minutes with Python's lock held
        (Guide("json_schema", "[" * 200_000), "recursion"),
        (Guide("lark_grammar", 'start: t\nt[stop="\\n"]: /.*/'), "taken back"),
    ],
)
def test_a_wrong_guide_is_refused_with_its_place(guide: Guide, found: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        COMPILER.compile(guide)
    assert found in str(refused.value)


def test_slow_first_masks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    origin = COMPILER.compile(GUIDES[0])._origin
    check_costs(origin)
    monkeypatch.setattr(guide_trial_module, "MAX_MASK_SECONDS", -1.0)
    with pytest.raises(ValueError, match="a mask takes"):
        check_costs(origin)


def test_draft_tokens_behind_the_vocabulary_are_rejected() -> None:
    """Engines may have more logits than tokens, and a prompt may have such ids, which lookup drafts."""
    state = COMPILER.compile(GUIDES[0]).after(ids([]))
    expected = state.allowed()
    assert state.look_ahead(ids([VOCABULARY.size, VOCAB_SIZE + 200]), 1.0) == 2
    assert np.array_equal(state.allowed(), expected)


def test_an_output_that_does_not_follow_the_grammar_is_refused_and_harms_nobody() -> None:
    grammar = COMPILER.compile(GUIDES[3])
    with pytest.raises(InvalidRequestError, match="does not follow"):
        grammar.after(ids(encode("maybe")))
    assert grammar.after(ids([])).allowed().any()


def test_masks_behind_draft_tokens_are_computed_until_the_time_is_over() -> None:
    state = COMPILER.compile(GUIDES[0]).after(ids([]))
    drafted = ids(encode('{"full_name":"Ada'))
    assert state.look_ahead(drafted, 0.0) == 0
    assert state.look_ahead(drafted, 60.0) == len(drafted)


HARD = Guide("regex", "[ax]*a[ax]{14}b[ax]*")
"""Its lexer needs more states with every "a"."""

LETTERS = [encode(letter)[0] for letter in "ax"]


def write(state: RequestGrammarState, count: int, seed: int) -> None:
    for choice in np.random.default_rng(seed).integers(0, 2, count).tolist():
        assert state.allowed()[LETTERS].all()
        state.push(LETTERS[choice])


def use_up(grammar: RequestGrammar) -> None:
    with pytest.raises(InvalidRequestError, match="too many states"):
        write(grammar.after(ids([])), 3000, seed=2)
    assert grammar.is_used_up


def test_a_request_whose_guide_others_have_used_up_goes_on_with_a_lexer_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guides_module, "_MOST_SHARED_STATES", 1500)
    monkeypatch.setattr(guides_module, "MAX_LEXER_STATES", 1500)
    compiler = new_compiler()
    hostile, other = (compiler.compile(HARD) for _ in range(2))
    state = other.after(ids([]))
    write(state, 20, seed=1)
    use_up(hostile)
    assert other.is_used_up and compiler.remembered(HARD) is None
    other.renew()
    write(state, 200, seed=3)
    hostile.renew()
    use_up(hostile)
    write(state, 20, seed=4)
    write(compiler.compile(HARD).after(ids([])), 200, seed=5)


def test_a_guide_is_not_renewed_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_module, "_MOST_RENEWING_S", 0.0)
    grammar = new_compiler().compile(HARD)
    grammar.renew()
    with pytest.raises(InvalidRequestError, match="again and again"):
        grammar.renew()


def test_remembered_guides_are_bounded_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    guides = [Guide("choice", json.dumps([letter * 1000])) for letter in "abc"]
    monkeypatch.setattr(guides_module, "_MOST_REMEMBERED_BYTES", 2 * guides_module._num_bytes(guides[0]))
    compiler = new_compiler()
    for guide in guides:
        compiler.compile(guide)
    assert [compiler.remembered(guide) is not None for guide in guides] == [False, True, True]


def test_what_passes_a_trial_does_not_overflow_the_stack_of_any_thread_that_compiles() -> None:
    """Twice the chains that trials let through, asked for by a thread with a small stack."""
    usual = threading.stack_size(1 << 20)
    try:
        with ThreadPoolExecutor(1) as threads:
            for guide in (
                Guide("json_schema", json.dumps(chain_of_references(900))),
                Guide("lark_grammar", chain_of_rules(2000)),
            ):
                grammar = threads.submit(COMPILER.compile, guide).result()
                assert grammar.after(ids([])).allowed().any()
    finally:
        threading.stack_size(usual)


def test_a_guide_is_compiled_behind_the_steps() -> None:
    usual = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    found = []

    def recorded(text: str) -> list[int]:
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return encode(text)

    grammar = GrammarCompiler(VOCABULARY, VOCAB_SIZE, lambda: recorded).compile(Guide("choice", '["yes"]'))
    assert set(found) == {min(usual + NICENESS, 19)}
    grammar.mask_after(ids(encode("y")))
    assert found[-1] == usual == os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_a_slow_mask_is_told_and_what_comes_before_it_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock takes a second; an output that is read anew does not count."""
    monkeypatch.setattr(grammar_module, "time", SimpleNamespace(thread_time=itertools.count().__next__))
    monkeypatch.setattr(grammar_module, "_USUAL_MASK_S", 1.5)
    monkeypatch.setattr(grammar_module, "_MOST_MASK_S", 2.5)
    grammar = COMPILER.compile(GUIDES[2])
    found = []
    state = grammar.after(ids(encode("1")))
    for num_questions in (0, 1, 0, 2):
        assert not any(state.is_complete for _ in range(num_questions))
        with nullcontext() if num_questions < 2 else pytest.raises(InvalidRequestError, match="takes 3"):
            state.allowed()
        found.append(grammar.slow_s)
        state = RequestGrammarState(grammar, ids(encode("1")))
    assert found == [0, 2, 0, 3]


def test_a_mask_that_takes_too_long_ends_its_own_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, other = (COMPILER.compile(GUIDES[2]).after(ids(encode("1"))) for _ in range(2))
    with monkeypatch.context() as patch:
        patch.setattr(grammar_module, "_MOST_MASK_S", -1.0)
        with pytest.raises(InvalidRequestError, match="what may follow here takes"):
            slow.allowed()
    assert other.allowed().any()
