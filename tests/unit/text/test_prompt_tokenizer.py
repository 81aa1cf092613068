"""Tests of tokenizers as people publish them: special tokens, prefix spaces, BOS, settings of a trainer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from pipelines.errors import EngineLoadError, InvalidRequestError
from pipelines.manifest import sha256_file
from pipelines.router.preprocessing import Preprocessing
from pipelines.text.chunk_boundary import ChunkBoundary
from pipelines.text.prompt_tokenizer import PromptTokenizer
from pipelines.text.special_names import MARK, mark_user_names
from pipelines.text.vocabulary import Vocabulary
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.text.ensemble_steps import word_ids
from pipelines.wire.chunk import Chunk
from pipelines.wire.chunk_parts import with_text
from pipelines.wire.messages import EngineRequest
from pipelines.wire.request import CompletionRequest
from tests.support.examples import examples
from tests.support.trained_tokenizers import TEXTS, TOKENIZERS, byte_level, unigram, with_bos

CHAT = ("<|im_start|>", "<|im_end|>")
PATH = Path("tokenizer.json")


@lru_cache
def chat_tokenizer(kind: str) -> Tokenizer:
    """Return a trained tokenizer that also has ChatML's special tokens, and those of Phi-3, which nest."""
    tokenizer = TOKENIZERS[kind]()
    tokenizer.add_special_tokens([*CHAT, "<|end|>", "<|end|>>"])
    return tokenizer


def of_template(text: str) -> str:
    return "".join(character + MARK for character in text)


@lru_cache
def prompts_of(kind: str) -> PromptTokenizer:
    return PromptTokenizer(chat_tokenizer(kind).to_str().encode(), PATH)


def special_ids(kind: str) -> set[int]:
    return set(prompts_of(kind).vocabulary.special)


# `<` and `|` are not in Unigram's training text, and without byte fallback it has no tokens for them.
SPELLING = [kind for kind in TOKENIZERS if kind != "unigram"]


@pytest.mark.parametrize("kind", SPELLING)
@pytest.mark.parametrize("name", [*CHAT, "<s>", "</s>", "<|end|>>"])
@pytest.mark.parametrize("text", ["{}", "x {} = 1", "{}{}", "a{}b"])
def test_a_name_in_a_text_does_not_become_the_special_token(kind: str, name: str, text: str) -> None:
    prompts = prompts_of(kind)
    written = text.replace("{}", name)
    ids = prompts.encode(written, add_special_tokens=False)
    assert not special_ids(kind) & set(ids)
    assert prompts.vocabulary.join(ids).decode().removeprefix(" ") == written
    parsed = prompts.encode(written, add_special_tokens=False, parse_special_tokens=True)
    assert parsed == chat_tokenizer(kind).encode(written, add_special_tokens=False).ids
    assert parsed.count(chat_tokenizer(kind).token_to_id(name)) == text.count("{}")


def test_a_model_that_knows_the_names_itself_does_not_find_them() -> None:
    """Unigram has special tokens among its pieces, with the best scores of all."""
    document = json.loads(unigram().to_str())
    document["model"]["vocab"] += [["<", -9.0], ["/", -9.0], [">", -9.0]]
    prompts = PromptTokenizer(json.dumps(document).encode(), PATH)
    ids = prompts.encode("a</s>b", add_special_tokens=False)
    assert not {0, 1, 2} & set(ids)
    assert prompts.vocabulary.join(ids) == b" a</s>b"


def test_bos_comes_first_even_if_the_vocabulary_lacks_the_letter_that_is_tried() -> None:
    tokenizer = Tokenizer(models.BPE({"<s>": 0, "b": 1}, []))
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.decoder = decoders.ByteLevel()
    prompts = PromptTokenizer(with_bos(tokenizer).to_str().encode(), PATH)
    assert prompts.encode("bb") == [0, 1, 1]
    assert prompts.encode("<s>b", parse_special_tokens=True) == [0, 1]


def test_a_name_that_cannot_be_written_as_text_is_refused() -> None:
    prompts = PromptTokenizer(unigram().to_str().encode(), PATH)
    with pytest.raises(InvalidRequestError, match=r"'</s>'.*parse_special_tokens=true"):
        prompts.encode("a</s>b")
    unknown = prompts.encode("a \u4f60", add_special_tokens=False)
    assert unknown[-1] == 0, "the special token for what is unknown stays"


@pytest.mark.parametrize("kind", TOKENIZERS)
@examples(100)
@given(text=st.text("ab =\n\u2615\xe9<|>/s_imtarnd", max_size=30))
def test_texts_without_names_are_what_the_library_makes_of_them(kind: str, text: str) -> None:
    prompts = prompts_of(kind)
    if prompts.names_special_token(text):
        return
    expected = chat_tokenizer(kind).encode(text).ids
    assert prompts.encode(text) == prompts.encode(text, parse_special_tokens=True) == expected


@pytest.mark.parametrize("kind", SPELLING)
@examples(100)
@given(
    parts=st.lists(st.sampled_from([*CHAT, "<s>", "<|end|>", "<|end|>>", "user\n", "x = 1", "\u2615"])),
    place=st.integers(0, 8),
)
def test_a_marked_name_is_text_and_the_others_are_special(kind: str, parts: list[str], place: int) -> None:
    prompts, names = (
        prompts_of(kind),
        [name.decode() for name in prompts_of(kind).vocabulary.special.values()],
    )
    message = "".join(parts[place : place + 2])
    before, behind = "".join(parts[:place]), "".join((*parts[place + 2 :], CHAT[1]))
    whole = mark_user_names("".join((of_template(before), message, of_template(behind))), names)
    ids = prompts.encode(whole, add_special_tokens=False, parse_special_tokens=True)
    outside = "".join((*parts[:place], "\n", *parts[place + 2 :], CHAT[1]))
    expected = [each for each in chat_tokenizer(kind).encode(outside).ids[1:] if each in special_ids(kind)]
    assert [each for each in ids if each in special_ids(kind)] == expected
    shown = prompts.vocabulary.join_with_special(ids, 10**6).decode()
    assert shown.replace(" ", "") == "".join((*parts[:place], message, *parts[place + 2 :], CHAT[1])).replace(
        " ", ""
    )


@pytest.mark.parametrize("is_in_a_sequence", [True, False])
@pytest.mark.parametrize("turn", ["<|im_start|>user\nx = 1", "x = 1<|im_start|>def"])
def test_a_users_name_leaves_the_tokens_of_the_rest_as_they_are(turn: str, is_in_a_sequence: bool) -> None:
    """With Metaspace's ``first`` only the beginning of the whole text gets a space."""
    tokenizer = Tokenizer.from_str(chat_tokenizer("sentencepiece_bpe").to_str())
    first = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([first]) if is_in_a_sequence else first
    prompts = PromptTokenizer(tokenizer.to_str().encode(), PATH)
    expected = tokenizer.encode(turn).ids
    ids = prompts.encode(f"{turn}<|im{MARK}_end|>", parse_special_tokens=True)
    assert ids[: len(expected)] == expected


def test_marks_in_a_long_text_with_many_names_take_little_time() -> None:
    tokenizer = TOKENIZERS["byte_level"]()
    tokenizer.add_special_tokens([f"{'<' * 30}{number}>" for number in range(250)])
    prompts = PromptTokenizer(tokenizer.to_str().encode(), PATH)
    text = "<" * 300_000
    seconds = []
    for each in (text, text, text + MARK):
        began = time.process_time()
        prompts.encode(each, parse_special_tokens=True)
        seconds.append(time.process_time() - began)
    assert seconds[2] < 4 * seconds[1] + 0.2


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("kind", TOKENIZERS)
@examples(200)
@given(data=st.data())
def test_chunks_join_to_the_decoded_text_of_the_whole(kind: str, skip: bool, data: st.DataObject) -> None:
    """Any tokens in any chunks, special ones, parts of characters and bytes that are no UTF-8 among them."""
    tokenizer, vocabulary = chat_tokenizer(kind), prompts_of(kind).vocabulary
    ids = data.draw(st.lists(st.integers(1, vocabulary.size - 1), max_size=16))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=4)))
    boundary = ChunkBoundary(vocabulary)
    spelled = ""
    for begin, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        released = boundary.release(ids[begin:end], is_final=end == len(ids))
        spelled += text_of(vocabulary, released, skip=skip)
    prompt = tokenizer.encode("x", add_special_tokens=False).ids  # so that no leading space is dropped
    whole = tokenizer.decode(prompt + ids, skip_special_tokens=skip)
    before = tokenizer.decode(prompt)
    assert whole.startswith(before)
    if kind == "sentencepiece_bpe" and "\ufffd" in whole:
        # If bytes in a row are no UTF-8, the library replaces all of them, those of whole characters too.
        assert "\ufffd" in spelled
    else:
        assert spelled == whole.removeprefix(before)


def text_of(vocabulary: Vocabulary, ids: list[int], *, skip: bool, text_length: int = 10**6) -> str:
    chunk = Chunk("", tuple(ids), (), "", 0.0, len(ids), text_length=text_length)
    return with_text(chunk, vocabulary, skip_special_tokens=skip).text


def test_a_stop_word_cuts_a_text_with_special_tokens_too() -> None:
    vocabulary = Vocabulary((b"", b"ab", b"cd"), {0: b"<|im_end|>"})
    assert text_of(vocabulary, [0, 1, 0, 2, 0], skip=False) == "<|im_end|>ab<|im_end|>cd<|im_end|>"
    assert text_of(vocabulary, [0, 1, 0, 2, 0], skip=True) == "abcd"
    assert text_of(vocabulary, [0, 1, 0, 2, 0], skip=False, text_length=3) == "<|im_end|>ab<|im_end|>c"
    assert text_of(vocabulary, [0, 1, 0, 2, 0], skip=False, text_length=1) == "<|im_end|>a"


def test_a_tokenizer_of_an_encoder_is_refused() -> None:
    wordpiece = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    with pytest.raises(EngineLoadError, match="WordPiece"):
        Vocabulary.parse(wordpiece.to_str().encode(), PATH)


def test_a_pattern_that_backtracks_without_end_refuses_the_text_and_no_other() -> None:
    tokenizer = TOKENIZERS["byte_level"]()
    split = pre_tokenizers.Split(Regex("^(x+x+)+y"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, tokenizer.pre_tokenizer])
    prompts = PromptTokenizer(tokenizer.to_str().encode(), PATH)
    for parses in (False, True):
        with pytest.raises(InvalidRequestError, match="cannot split this text"):
            prompts.encode("x" * 40, parse_special_tokens=parses)
        assert prompts.encode("hello", parse_special_tokens=parses)


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return TOKENIZERS[request.param]()


@pytest.fixture
def start(tmp_path: Path) -> Callable[[Tokenizer], Preprocessing]:
    def start(tokenizer: Tokenizer) -> Preprocessing:
        path = tmp_path / "tokenizer.json"
        tokenizer.save(str(path))
        values = {"tokenizer_file": str(path), "tokenizer_sha256": sha256_file(path), "max_seq_len": "1000"}
        return ModelParameters("generate", values).preprocessing()

    return start


def ask(preprocessing: Preprocessing, text: str, **others: Any) -> EngineRequest:
    return preprocessing(CompletionRequest(text, max_tokens=4, **others))


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary.parse(tokenizer.to_str().encode(), Path("tokenizer.json"))


@pytest.mark.parametrize("word", ["\n", "return", " return", "1, 2", "é"])
def test_words_are_bytes_without_the_prefix_space(
    word: str, tokenizer: Tokenizer, start: Callable[[Tokenizer], Preprocessing]
) -> None:
    preprocessing = start(tokenizer)
    asked = ask(preprocessing, "x", stop_words=(word,), bad_words=(word,))
    assert asked.stop == asked.bad_words == (word.encode(),)
    ids = word_ids(word.encode(), preprocessing)
    assert preprocessing.vocabulary.join(ids) == word.encode()


def test_truncation_and_padding_of_a_trainer_are_ignored(
    tokenizer: Tokenizer, start: Callable[[Tokenizer], Preprocessing]
) -> None:
    text = TEXTS[0]
    plain = ask(start(tokenizer), text).input_ids
    trained = Tokenizer.from_str(tokenizer.to_str())
    trained.enable_truncation(max_length=4)
    assert ask(start(trained), text).input_ids == plain
    padded = Tokenizer.from_str(tokenizer.to_str())
    padded.enable_padding(length=200)
    assert ask(start(padded), text).input_ids == plain


def test_bos_is_there_once(tokenizer: Tokenizer, start: Callable[[Tokenizer], Preprocessing]) -> None:
    """A chat template writes BOS into its text, and the tokenizer adds another."""
    preprocessing = start(tokenizer)
    bos = tokenizer.token_to_id("<s>")
    for text in ("x = 1", "<s>x = 1"):
        ids = ask(preprocessing, text, parse_special_tokens=True).input_ids
        assert ids[0] == bos and bos not in ids[1:]
    without = ask(preprocessing, "x = 1", add_special_tokens=False)
    assert (bos, *without.input_ids) == ask(preprocessing, "x = 1").input_ids


def test_an_added_token_that_is_not_special_is_spelled(start: Callable[[Tokenizer], Preprocessing]) -> None:
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    vocabulary = vocabulary_of(tokenizer)
    assert vocabulary.join(tokenizer.encode("<think>", add_special_tokens=False).ids) == b"<think>"
