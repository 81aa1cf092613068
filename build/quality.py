"""Measure what the quantization of a target costs in perplexity, before there is an engine.

The recipe's network and the checkpoint's in float32 compute the same text, one part at a time: a layer, or
the head. So one layer of weights is in memory, and the numbers are an engine's. A draft changes no answer, so
it is not measured.
"""

from __future__ import annotations

import heapq
import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from build.checkpoints.tensor_file import Float32Array, Tensor
from build.checkpoints.tokenizer_file import load_tokenizer
from build.command_line import print_line
from build.engines import compiler_digests, gains_from_own_products
from build.networks.growth import grow
from build.networks.linear import Linear
from build.networks.network import Network, NetworkConfig
from build.networks.weight_only import GROUP_SIZE, apply_quantization
from build.openvino.decoder_graph import Attention, DecoderGraph
from build.openvino.engine import DYNAMIC_QUANTIZATION_GROUP_SIZE
from build.openvino.operations import Product, openvino_product
from build.openvino.own_operators import KV_BLOCK_SIZE, OwnAttention, own_product
from build.openvino.paged_attention import PagedAttention
from build.operators.library import has_operators
from build.preflight import EngineSource
from build.recipe import EngineRecipe, Recipe
from pipelines.atomic_file import write_whole
from pipelines.available_resources import available_cores, has_avx2_alone
from pipelines.manifest import sha256_file, sha256_json
from pipelines.time_left import TimeLeft

_WINDOW, _NUM_WINDOWS = 512, 2  # tokens of a window, and windows of each text
_ROWS_AT_ONCE = 128  # whose logits are in memory

_Values = npt.NDArray[np.float64]
_Inputs = dict[str, npt.NDArray[Any]]


def quality_lines(recipe: Recipe, source: EngineSource, engines: Path, *, measures: bool) -> list[str]:
    """Say whether the quantization changes the target's weights, and what it costs in perplexity.

    Args:
        recipe: The pair.
        source: The target's checkpoint.
        engines: Folder that keeps the measurement, as ``<recipe>/quality-<fingerprint>.json``.
        measures: Whether to measure it, unless that is done; otherwise the lines say how to.
    """
    engine = recipe.target
    # Files count by size and time, because gigabytes are not read to print a line.
    files = {path.name: [path.stat().st_size, path.stat().st_mtime_ns] for path in source.network.files}
    sources = compiler_digests(), sha256_file(Path(__file__))
    identity = [engine.rounding, engine.lm_head, engine.linear, repr(engine.growth), files, sources]
    kept = engines / recipe.name / f"quality-{sha256_json(identity)[:16]}.json"
    if measures and not kept.is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_whole(kept, json.dumps(measure(engine, source, print_line)))
    begin = "target: " if engine.quantization == "auto" else f"target, {engine.quantization}: "
    network = source.network.read()
    rounded = " and ".join(_rounded(engine, network))
    lines = [f"{begin}rounds weights of {rounded}" if rounded else f"{begin}{_kept(network)}"]
    if kept.is_file():
        costs = json.loads(kept.read_text(encoding="utf-8")).items()
        lines += [
            f"{begin}perplexity on {name} {ratio:.3f} ({low:.3f} to {high:.3f}) times the checkpoint's own"
            for name, (ratio, low, high) in costs
        ]
    elif rounded:
        command = f"draftproof preflight --quality --recipe {recipe.path}"
        lines.append(f"what that costs in perplexity, '{command}' measures in a few minutes")
    return lines


def _kept(network: Network) -> str:
    """Say what weights that stay are; the first layer and the output head stand for all."""
    linears = (*network.layer(0).linears(), network.lm_head)
    bits = {linear.bits for linear in linears if linear.is_weight_only}
    if not bits:
        return "weights stay as the checkpoint has them"
    least, most = min(bits), max(bits)
    own = "file" if network.config.quant_algo == "gguf" else "checkpoint"
    return f"the {own}'s own {least if least == most else f'{least} to {most}'} bits, unchanged"


def _rounded(engine: EngineRecipe, network: Network) -> Iterator[str]:
    """Yield what does not keep the numbers of the checkpoint; the first layer stands for all."""
    is_w8a16 = network.config.quant_algo == "W8A16"  # some of whose weights may still be floats
    bits = {"int4": 4, "int8": 8}
    of_layers = bits.get(engine.rounding, 8 if is_w8a16 and engine.rounding == "checkpoint" else None)
    of_head = bits.get(engine.lm_head)
    if of_layers and not all(_is_kept(each, of_layers) for each in network.layer(0).linears()):
        yield "layers"
    if of_head and not _is_kept(network.lm_head, of_head):
        yield "the output head"


def _is_kept(linear: Linear, bits: int) -> bool:
    return linear.is_weight_only and linear.bits <= bits


def measure(
    engine: EngineRecipe, source: EngineSource, report: Callable[[str], None]
) -> dict[str, list[float]]:
    """Compute texts with a recipe's quantization and without any.

    Args:
        engine: Section of the recipe.
        source: Its checkpoint.
        report: Called with lines of progress.

    Returns:
        Name of a text -> perplexity with the quantization divided by that without, and both ends of its 95 %
        interval over positions.
    """
    config = source.network.config
    texts = sample_texts(source.tokenizer_path, config.max_position_embeddings)
    num_parts = 2 * (config.num_hidden_layers + 1)
    progress = TimeLeft(num_parts, report, lambda done: f"quality: {done:.0f} of {num_parts} parts computed")

    def surprise(quantization: str, lm_head: str, product: Product, rounding_group: int) -> _Values:
        network = source.network.read()
        if engine.growth is not None:
            network = grow(network, engine.growth)
        network = apply_quantization(network, quantization, lm_head)
        windows = [ids for of_text in texts.values() for ids in of_text]
        return surprises(network, windows, product, rounding_group, lambda: progress.advance(1))

    is_own = engine.linear == "draftproof" or (
        engine.linear == "auto" and gains_from_own_products(engine, config) and has_operators()
    )
    product = own_product if is_own else openvino_product
    exact = surprise("none", "checkpoint", openvino_product, 0)
    rounded = surprise(engine.rounding, engine.lm_head, product, _rounding_group(engine, config))
    more = np.split(rounded - exact, len(texts))
    return {name: _ratio(each) for name, each in zip(texts, more, strict=True)}


def _ratio(more: _Values) -> list[float]:
    error = 1.96 * more.std() / np.sqrt(more.size)
    ratio: list[float] = np.exp(more.mean() + error * np.array([0, -1, 1])).tolist()
    return ratio


def sample_texts(tokenizer: Path, max_seq_len: int) -> dict[str, list[list[int]]]:
    """Tokenize code and prose that come with Python; windows of equal length, which begin as prompts do."""
    encode = load_tokenizer(tokenizer.read_text(encoding="utf-8")).encode
    begin = encode("").ids[:1]
    size = min(_WINDOW, max_seq_len) - len(begin)
    texts = {}
    for name, text in (("code", inspect.getsource(heapq)), ("prose", topics["execmodel"])):
        ids = encode(text, add_special_tokens=False).ids
        texts[name] = [begin + ids[start : start + size] for start in range(0, _NUM_WINDOWS * size, size)]
    return texts


def _rounding_group(engine: EngineRecipe, config: NetworkConfig) -> int:
    """Return how many features of an activation OpenVINO rounds together, as in the engine."""
    if engine.rounding not in ("int8", "int4") and not config.rounds_activations:
        return 0
    group = GROUP_SIZE if engine.rounding == "int4" else config.group_size
    return min(group, DYNAMIC_QUANTIZATION_GROUP_SIZE) if group > 1 else DYNAMIC_QUANTIZATION_GROUP_SIZE


def surprises(
    network: Network,
    windows: list[list[int]],
    product: Product,
    rounding_group: int,
    advance: Callable[[], None],
) -> _Values:
    """Return -log p of each token after the first of a window, [windows, tokens - 1].

    Args:
        network: The network.
        windows: Tokens, windows of equal length.
        product: What multiplies integer weights.
        rounding_group: Features of an activation that OpenVINO rounds together; 0 to round none.
        advance: Called after each layer, and at the end.
    """
    count, length = len(windows), len(windows[0])
    blocks = -(-length // KV_BLOCK_SIZE)
    num_blocks = count * blocks
    inputs: _Inputs = {
        "position_ids": np.tile(np.arange(length), count),
        "past_lens": np.zeros(count, np.int32),
        "subsequence_begins": np.arange(0, count * length + 1, length, np.int32),
        "block_indices": np.arange(num_blocks, dtype=np.int32),
        "block_indices_begins": np.arange(0, num_blocks + 1, blocks, np.int32),
        "max_context_len": np.array(length, np.int32),
        "slots": np.arange(count, dtype=np.int32),
    }
    ids, config, table = np.array(windows), network.config, network.embedding
    embedded = table.data[ids.ravel()]
    hidden = Tensor(table.dtype, embedded.shape, embedded).to_float32()[:, None] * config.embedding_multiplier
    for index in range(config.num_hidden_layers):
        compute = _part(network, index, product, rounding_group, num_blocks)
        hidden = compute({**inputs, "hidden": hidden}).copy()
        advance()
    compute = _part(network, config.num_hidden_layers, product, rounding_group, num_blocks)
    found, following = np.empty(ids.size), np.roll(ids, -1, axis=1).ravel()
    for start in range(0, ids.size, _ROWS_AT_ONCE):
        rows = np.arange(start, min(start + _ROWS_AT_ONCE, ids.size), dtype=np.int32)
        logits = compute({"hidden": hidden, "logits_rows": rows})
        logits = logits - logits.max(axis=1, keepdims=True)
        chosen = logits[np.arange(len(rows)), following[rows]]
        found[rows] = np.log(np.exp(logits, out=logits).sum(axis=1, dtype=np.float64)) - chosen
    advance()
    return found.reshape(ids.shape)[:, :-1]


def _part(
    network: Network, index: int, product: Product, rounding_group: int, num_blocks: int
) -> Callable[[_Inputs], Float32Array]:
    config = network.config
    needs_ours = config.own_attention_reason is not None
    attention: Attention = OwnAttention(config, "float32") if needs_ours else PagedAttention(config)
    model = DecoderGraph(network, attention, product).build_part(index)
    properties = {
        "INFERENCE_PRECISION_HINT": "f32",
        "KV_CACHE_PRECISION": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": str(rounding_group),
        "INFERENCE_NUM_THREADS": str(available_cores()),
        # As in an engine: with AVX2 alone, products of rounded inputs would cut sums off.
        **({"LP_TRANSFORMS_MODE": "NO"} if has_avx2_alone() else {}),
    }
    request = ov.Core().compile_model(model, "CPU", properties).create_infer_request()
    ports = {port.get_any_name(): port for port in request.model_inputs}
    for name, port in ports.items():
        if name.startswith(("key_cache", "value_cache", "state")):
            sizes = list(port.get_partial_shape())[1:]
            shape = ov.Shape([num_blocks, *(1 if size.is_dynamic else size.get_length() for size in sizes)])
            request.set_tensor(port, ov.Tensor(port.get_element_type(), shape))

    def compute(inputs: _Inputs) -> Float32Array:
        for name in ports.keys() & inputs.keys():
            request.set_tensor(name, ov.Tensor(inputs[name], shared_memory=True))
        request.start_async()  # infer() would not say that an operator of ours failed
        request.wait()
        values: Float32Array = request.get_output_tensor(0).data
        return values

    return compute
