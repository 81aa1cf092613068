"""Builds tiny engines with random weights in about a second, for tests that need a real engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from build.checkpoints.tensor_file import Tensor, write_tensors
from build.checkpoints.tensorrt_llm import EMBEDDING, FINAL_NORM, LM_HEAD, translated_config
from build.checkpoints.tokenizer_file import read_tokenizer
from build.hugging_face.config import parse_network_config
from build.networks.experts import ExpertSizes
from build.networks.growth import grow
from build.networks.linear import Linear
from build.networks.network import Fusion, Layer, LayerConfig, Network
from build.networks.recurrent import CONVOLUTION_TAPS, RecurrentSizes, RecurrentWeights
from build.networks.source import open_network
from build.networks.weight_only import apply_quantization
from build.openvino.engine import EngineSettings, write_engine
from build.recipe import EngineRecipe, Growth, KvCache
from pipelines.manifest import sha256_file, sha256_json

ROOT = Path(__file__).resolve().parents[2]
DEMO_TOKENIZER = ROOT / "engines" / "demo_pair" / "target" / "tokenizer.json"
END_OF_TEXT = "<|endoftext|>"


def tiny_config(**changes: Any) -> dict[str, Any]:
    """Return a ``config.json`` of a Llama with 2 layers of 128 features; keyword arguments replace keys."""
    config: dict[str, Any] = {
        "producer": {"name": "draftproof-tests"},
        "architecture": "LlamaForCausalLM",
        "dtype": "bfloat16",
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 128,
        "head_size": 64,
        "intermediate_size": 256,
        "vocab_size": 2048,
        "max_position_embeddings": 2048,
        "norm_epsilon": 1e-5,
        "hidden_act": "silu",
        "position_embedding_type": "rope_gpt_neox",
        "rotary_base": 10000.0,
        "rotary_scaling": None,
        "share_embedding_table": True,
        "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
        "end_id": 0,
    }
    return {**config, **changes}


def write_checkpoint(directory: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write a TensorRT-LLM checkpoint without its tokenizer."""
    directory.mkdir(parents=True, exist_ok=True)
    write_tensors(directory / "rank0.safetensors", tensors)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def random_weights(
    config: dict[str, Any], seed: int = 0, dtype: str = "BF16", scale: float = 1.0
) -> dict[str, Tensor]:
    """Return random unquantized weights for a config; projections preserve the variance of their inputs."""
    document = json.dumps({**config, "quantization": {"quant_algo": None}}, sort_keys=True)
    return dict(_random_weights(document, seed, dtype, scale))


@lru_cache(maxsize=32)  # most tests ask for the same
def _random_weights(document: str, seed: int, dtype: str, scale: float) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    path = Path("config.json")
    parsed = parse_network_config(translated_config(json.loads(document), path), path)
    hidden, heads = parsed.hidden_size, parsed.num_attention_heads * parsed.head_size
    inner, of_kv = parsed.intermediate_size, parsed.num_key_value_heads * parsed.head_size
    shapes = {
        **{"attention.qkv": (heads + 2 * of_kv, hidden), "attention.dense": (hidden, heads)},
        **{"mlp.fc": (inner, hidden), "mlp.gate": (inner, hidden), "mlp.proj": (hidden, inner)},
    }

    def normal(shape: tuple[int, ...], deviation: float) -> Tensor:
        return Tensor.from_float32(
            rng.standard_normal(shape, dtype=np.float32) * np.float32(deviation), dtype
        )

    def gain() -> Tensor:
        return Tensor.from_float32((1 + 0.1 * rng.standard_normal(hidden)).astype(np.float32), dtype)

    # Rows of 1/sqrt(hidden) give logits of about unit size; x3 makes some tokens likely.
    tensors = {EMBEDDING: normal((parsed.vocab_size, hidden), 3 * scale / hidden**0.5), FINAL_NORM: gain()}
    if not parsed.share_embedding_table:
        tensors[LM_HEAD] = normal((parsed.vocab_size, hidden), 3 * scale / hidden**0.5)
    for layer in range(parsed.num_hidden_layers):
        prefix = f"transformer.layers.{layer}."
        tensors[f"{prefix}input_layernorm.weight"] = gain()
        tensors[f"{prefix}post_layernorm.weight"] = gain()
        if "qkv" in parsed.biases:
            bias = rng.standard_normal(heads + 2 * of_kv, dtype=np.float32)
            tensors[f"{prefix}attention.qkv.bias"] = Tensor.from_float32(bias, dtype)
        for name, shape in shapes.items():
            tensors[f"{prefix}{name}.weight"] = normal(shape, 1.5 * scale / shape[1] ** 0.5)
    for tensor in tensors.values():
        tensor.data.flags.writeable = False  # others get them, too
    return tensors


def noisy(tensors: dict[str, Tensor], noise: float, seed: int = 1) -> dict[str, Tensor]:
    """Return a copy whose projections are perturbed by ``noise`` times their own standard deviation."""
    rng = np.random.default_rng(seed)
    changed = dict(tensors)
    for name, tensor in tensors.items():
        if len(tensor.shape) == 2 and ".layers." in name:
            values = tensor.to_float32()
            values = values + noise * values.std() * rng.standard_normal(values.shape, dtype=np.float32)
            changed[name] = Tensor.from_float32(values.astype(np.float32), tensor.dtype)
    return changed


def quiet(tensors: dict[str, Tensor], factor: float = 0.015) -> dict[str, Tensor]:
    """Return a copy whose layers add little to the embedding, so that a token mostly decides the next."""
    changed = dict(tensors)
    for name, tensor in tensors.items():
        if name.endswith(("attention.dense.weight", "mlp.proj.weight")):
            changed[name] = Tensor.from_float32(tensor.to_float32() * np.float32(factor), tensor.dtype)
    return changed


FEATURE_LAYERS = (0, 1, 2)


def with_features(network: Network) -> Network:
    """Return a target of two layers that returns features."""
    return replace(network, config=replace(network.config, feature_layers=FEATURE_LAYERS))


def hybrid(network: Network) -> Network:
    """Return the network with a recurrent layer instead of the first one, which adds little too."""
    config, rng = network.config, np.random.default_rng(11)
    sizes = RecurrentSizes(num_key_heads=2, num_value_heads=4, key_size=32, value_size=32)
    layers = (LayerConfig(None, is_recurrent=True), *config.layers[1:])
    first = replace(
        network.layer(0),
        qkv=(_random_linear(rng, sizes.width, config.hidden_size, 1.0),),
        dense=_random_linear(rng, config.hidden_size, sizes.value_channels, 0.2),
        recurrence=RecurrentWeights(
            rng.standard_normal((CONVOLUTION_TAPS, sizes.channels)).astype(np.float32),
            rng.uniform(0.01, 0.5, sizes.num_value_heads).astype(np.float32),
            rng.standard_normal(sizes.num_value_heads).astype(np.float32),
            np.ones(sizes.value_size, np.float32),
        ),
    )
    return replace(
        network,
        config=replace(config, layers=layers, recurrence=sizes),
        layer=lambda index: network.layer(index) if index else first,
    )


def _random_linear(rng: np.random.Generator, outputs: int, inputs: int, scale: float) -> Linear:
    values = (scale * rng.standard_normal((outputs, inputs)) / inputs**0.5).astype(np.float32)
    return Linear(Tensor("F32", values.shape, values))


def mixture(network: Network) -> Network:
    """Return the network with experts instead of the MLP of its first layer, which add little too."""
    config, rng = network.config, np.random.default_rng(11)
    sizes = ExpertSizes(count=8, num_chosen=2, intermediate_size=64, normalizes=True)
    inner, hidden = sizes.count * sizes.intermediate_size, config.hidden_size
    experts = replace(
        network.layer(0),
        router=_random_linear(rng, sizes.count, hidden, 2.0),
        fc=_random_linear(rng, inner, hidden, 1.0),
        gate=_random_linear(rng, inner, hidden, 1.0),
        proj=_random_linear(rng, sizes.count * hidden, sizes.intermediate_size, 0.2),
    )
    layers = (replace(config.layers[0], has_experts=True), *config.layers[1:])
    return replace(
        network,
        config=replace(config, layers=layers, experts=sizes),
        layer=lambda index: network.layer(index) if index else experts,
    )


def like_gpt_oss(network: Network) -> Network:
    """Return a mixture with what gpt-oss has beside: biases, another activation, sinks and a window."""
    made, rng = mixture(network), np.random.default_rng(12)

    def biased(linear: Linear) -> Linear:
        return replace(linear, bias=rng.normal(0, 0.05, len(linear.weight.data)).astype(np.float32))

    def layer(index: int) -> Layer:
        plain = made.layer(index)
        sinks = np.linspace(-1, 3, network.config.num_attention_heads, dtype=np.float32)
        router = plain.router and biased(plain.router)
        return replace(plain.with_linears(biased), router=router, sinks=sinks)

    first, *others = made.config.layers
    config = replace(
        made.config, layers=(replace(first, window=32), *others), has_sinks=True, activation="clamped_swiglu"
    )
    return replace(made, config=config, layer=layer)


def tiny_head(target: Network) -> Network:
    """Return a head whose attention passes on the embedding of the token itself, and little of the features.

    Queries equal the keys, so a token attends to itself and its like; values hold the embedding, and the
    output projection restores it. Of a ``quiet`` target it predicts every second token.
    """
    config = replace(
        target.config, layers=target.config.layers[:1], feature_layers=FEATURE_LAYERS, reads_features=True
    )
    rng = np.random.default_rng(7)
    hidden, inner, size = config.hidden_size, config.intermediate_size, config.head_size
    groups, shared = config.num_key_value_heads, config.num_attention_heads // config.num_key_value_heads

    def linear(values: npt.NDArray[np.floating[Any]]) -> Linear:
        return Linear(Tensor("F32", values.shape, np.ascontiguousarray(values, np.float32)))

    def normal(outputs: int, inputs: int, scale: float) -> npt.NDArray[np.float64]:
        return scale * rng.standard_normal((outputs, inputs)) / inputs**0.5

    def of_heads(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Repeat rows [groups * size, n] for the heads of each group."""
        return np.repeat(values.reshape(groups, size, -1), shared, axis=0).reshape(-1, values.shape[1])

    keys, values = normal(groups * size, hidden, 2), normal(groups * size, hidden, 1)
    of_embedding = np.concatenate([of_heads(keys), keys, values])
    of_state = normal(len(of_embedding), hidden, 0.05)
    layer = Layer(
        qkv=(linear(np.concatenate([of_embedding, of_state], axis=1)),),
        dense=linear(of_heads(np.linalg.pinv(values).T).T / shared),
        fc=linear(normal(inner, hidden, 1)),
        gate=linear(normal(inner, hidden, 1)),
        proj=linear(normal(hidden, inner, 0.05)),
        input_norm=np.ones(hidden, np.float32),
        post_norm=np.ones(hidden, np.float32),
    )
    fc = linear(normal(hidden, len(FEATURE_LAYERS) * hidden, 1))
    fusion = Fusion(fc, np.full(hidden, 0.05, np.float32), norms_residual=True)
    return replace(target, config=config, layer=lambda _: layer, fusion=fusion)


def added_token(content: str, token_id: int) -> dict[str, Any]:
    """An entry of ``added_tokens`` with all the fields that the package ``tokenizers`` wants."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": content, **flags, "special": True}


def write_tokenizer(path: Path, vocab_size: int = 2048) -> None:
    """Write the demo pair's tokenizer if it exists with this size, else a made-up byte-level one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if DEMO_TOKENIZER.is_file():
        text = DEMO_TOKENIZER.read_text(encoding="utf-8")
        if len(json.loads(text)["model"]["vocab"]) == vocab_size:
            path.write_text(text, encoding="utf-8")
            return
    # GPT-2's spelling of bytes: printable ones stand for themselves, the others for U+0100 onwards.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in printable]
    byte_text = {byte: chr(byte) for byte in printable} | {b: chr(256 + i) for i, b in enumerate(hidden)}
    words = [END_OF_TEXT, *(byte_text[byte] for byte in range(256))]
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    merges = [(a, b) for a in letters for b in letters] + [(byte_text[32], a) for a in letters]
    triples = [(a + b, c) for a in letters[:8] for b in letters[:8] for c in letters[:26]]
    merges = (merges + triples)[: max(0, vocab_size - len(words))]
    words += [a + b for a, b in merges]
    words += [f"<|unused_{index}|>" for index in range(vocab_size - len(words))]
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added_token(END_OF_TEXT, 0)],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": True,
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {word: index for index, word in enumerate(words)},
            "merges": [list(pair) for pair in merges],
        },
    }
    path.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")


def write_template(engine: Path) -> None:
    """Write a chat template whose prompts begin and end with the token 0, the only special one."""
    source = "{{ mark }}{% for message in messages %}{{ message.content }}{% endfor %}{{ mark }}"
    document = {
        "templates": {"default": source},
        "special_tokens": {"mark": END_OF_TEXT},
        "special_names": [END_OF_TEXT],
    }
    (engine / "chat.json").write_text(json.dumps(document), encoding="utf-8")


def build_tiny_engine(
    directory: Path,
    config: dict[str, Any],
    tensors: dict[str, Tensor],
    *,
    role: str = "target",
    quantization: str = "int8",
    num_threads: int = 2,
    kv_cache_dtype: str = "float32",
    attention: str = "openvino",
    linear: str = "openvino",
    growth: Growth | None = None,
    change: Callable[[Network], Network] | None = None,
) -> Path:
    """Write checkpoint and engine of one model, or of what ``change`` makes of it; return the engine."""
    checkpoint_directory = directory / f"{role}_checkpoint"
    write_checkpoint(checkpoint_directory, config, tensors)
    write_tokenizer(checkpoint_directory / "tokenizer.json", config["vocab_size"])
    network = open_network(checkpoint_directory).read()
    if growth is not None:
        network = grow(network, growth)
    if change is not None:
        network = change(network)
    lm_head = "int8" if quantization == "int8" else "checkpoint"
    engine, engine_tokenizer = directory / role, checkpoint_directory / "tokenizer.json"
    recipe = [quantization, num_threads, kv_cache_dtype, attention, linear, str(growth)]
    recipe += [
        list(network.config.feature_layers),
        *map(str, (network.config.recurrence, network.config.experts, network.config.has_sinks)),
    ]
    write_engine(
        engine,
        apply_quantization(network, quantization, lm_head),
        engine_tokenizer,
        EngineSettings(
            role,
            "tiny",
            EngineRecipe(
                *("", quantization),
                num_threads=num_threads,
                attention=attention,
                linear=linear,
                kv_cache=KvCache(kv_cache_dtype),
            ),
            end_ids=(config["end_id"],),
            fingerprint=sha256_json([sha256_file(checkpoint_directory / "rank0.safetensors"), role, recipe]),
            origin={"tokenizer_identity_sha256": read_tokenizer(engine_tokenizer).sha256},
        ),
    )
    return engine


_TARGETS = {"hybrid": hybrid, "mixture": mixture, "gpt_oss": like_gpt_oss}


def build_tiny_pair(
    directory: Path,
    seed: int = 0,
    *,
    draft: str = "noisy",
    noise: float = 0.04,
    quantization: str = "int8",
    vocab_size: int = 2048,
    num_threads: int = 2,
    kv_cache_dtype: str = "float32",
    attention: str = "openvino",
    linear: str = "openvino",
    growth: Growth | None = None,
    target: str = "dense",
    **config_changes: Any,
) -> tuple[Path, Path]:
    """Make a draft and a target engine with random weights.

    Args:
        directory: The folder for both engines and their checkpoints.
        draft: ``noisy``: the target with perturbed projections, so that some drafts are accepted;
            ``self``: the target's own weights; ``random``: unrelated weights; ``head``: a trained head, as it
            were, of a target whose next token depends mostly on the last one.
        noise: Strength of the perturbation for ``noisy``, relative to the weights.
        quantization: ``int8`` or ``none``.
        vocab_size: 2048 takes the demo pair's tokenizer where it exists.
        kv_cache_dtype: ``float32``, ``float16`` or ``int8``.
        attention: ``openvino`` or ``draftproof``.
        linear: ``openvino`` or ``draftproof``.
        growth: Sizes to which the target is grown; its function stays the same, its steps cost more.
        target: ``dense``; ``hybrid``, ``mixture`` or ``gpt_oss``: with a recurrent layer or with experts, and
            both models add little to the embedding.
        **config_changes: Keys of ``config.json`` for both.

    Returns:
        The engine directories of draft and target.
    """
    has_head = draft == "head"
    is_quiet = has_head or target != "dense"
    config = tiny_config(vocab_size=vocab_size, share_embedding_table=not is_quiet, **config_changes)
    weights = random_weights(config, seed)
    if is_quiet:
        weights = quiet(weights)
    drafts = {
        "head": lambda: weights,
        "noisy": lambda: noisy(weights, noise, seed + 1),
        "self": lambda: weights,
        "random": lambda: random_weights(config, seed + 1),
    }
    options: dict[str, Any] = {
        "quantization": quantization,
        "num_threads": num_threads,
        "kv_cache_dtype": kv_cache_dtype,
        "attention": attention,
        "linear": linear,
    }
    return (
        build_tiny_engine(
            *(directory, config, drafts[draft]()),
            role="draft",
            change=tiny_head if has_head else None,
            **options,
        ),
        build_tiny_engine(
            *(directory, config, weights),
            role="target",
            growth=growth,
            change=with_features if has_head else _TARGETS.get(target),
            **options,
        ),
    )
