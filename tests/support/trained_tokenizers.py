"""Small tokenizers in the forms in which people publish them, trained on a few lines."""

from __future__ import annotations

import json
from collections.abc import Callable

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXTS = ["def add(first, second):\n    return first + second\n", "Ein Café über ☕ naïve", "x = [1, 2]\n"]
CORPUS = TEXTS * 50
SPECIALS = ["<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def with_bos(tokenizer: Tokenizer) -> Tokenizer:
    bos = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    return tokenizer


def byte_level() -> Tokenizer:
    """Llama 3, Qwen."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return with_bos(tokenizer)


def byte_level_with_specials_in_its_vocabulary() -> Tokenizer:
    """DeepSeek: names of special tokens are in ``model.vocab``, in characters that spell no byte."""
    tokenizer = byte_level()
    document = json.loads(tokenizer.to_str())
    free = max(document["model"]["vocab"].values()) + 1
    document["model"]["vocab"]["<|end▁of▁sentence|>"] = free
    tokenizer = Tokenizer.from_str(json.dumps(document))
    tokenizer.add_special_tokens(["<|end▁of▁sentence|>"])
    return tokenizer


def sentencepiece_bpe() -> Tokenizer:
    """Llama 2, Mistral, Phi-3: a space before every text, byte fallback."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=["<unk>", *SPECIALS, *BYTES], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = [each for each in document["added_tokens"] if each["content"] not in BYTES]
    return with_bos(Tokenizer.from_str(json.dumps(document)))


def unigram() -> Tokenizer:
    """T5, and Gemma's first tokenizers: pieces with scores, which the file lists in the order of ids."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    alphabet = sorted({character for text in CORPUS for character in text})
    trainer = trainers.UnigramTrainer(
        vocab_size=300,
        special_tokens=["<unk>", *SPECIALS],
        unk_token="<unk>",
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return with_bos(tokenizer)


TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    make.__name__: make
    for make in (byte_level, byte_level_with_specials_in_its_vocabulary, sentencepiece_bpe, unigram)
}
