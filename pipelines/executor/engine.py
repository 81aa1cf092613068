"""Loads an engine and computes its steps.

An engine directory contains ``engine.xml``, ``engine.bin`` and ``engine.json``, written by
``build/openvino/engine.py``. ``lane`` decides what a step computes.

The weights are copied to where only this process can change them, and checked there. OpenVINO would map the
file and read it again for each new shape of a step, even if it has changed by then
(docs/decisions/engines.md).
"""

from __future__ import annotations

import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pipelines.engine_memory import MAX_LOGGED_ROWS
from pipelines.errors import EngineLoadError
from pipelines.executor.kv_cache import SCRATCH_BLOCK
from pipelines.executor.network import Network, compile_networks, operator_library
from pipelines.executor.step import (
    NO_SLOT,
    Chunk,
    StepInputs,
    pack,
    with_sequences,
    with_states,
    with_tokens,
)
from pipelines.executor.weights import Weights
from pipelines.manifest import EngineFiles, check_digest, sha256_bytes

FORMAT_VERSIONS = (2, 3)  # only the latter has operators other than attention


STEP_TIMEOUT_S = {"draft": 5.0, "target": 120.0}
"""Time limit of a short step by role: requests can continue without the draft, but not without the target."""

_DEFAULTS = {  # of entries that older engines, or those of pairs without a trained head, do not have
    "attention": "openvino",
    "linear": "openvino",
    "feature_layers": (),
    "reads_features": False,
    "hidden_size": 0,
    "state_bytes": 0,
    "log_bytes": 0,
}

_TIMEOUT_S_PER_TOKEN_AND_BYTE = 5e-11
"""Time that each token of a step adds for each byte of the weights, as on a single busy core."""

_CROWDS = 2, 9, 64, 128  # rows of the steps that are compared
_NUM_NAMED = 8  # rows in an error


@dataclass(frozen=True)
class EngineConfig:
    """The contents of ``engine.json`` needed to run the engine.

    Attributes:
        vocab_size: Columns of the logits.
        end_ids: End tokens.
        max_position_embeddings: Longest sequence for which the network was trained, in tokens.
        kv_cache_dtype: "float32", "float16" or "int8".
        attention: "openvino" or "draftproof".
        linear: "openvino" or "draftproof".
        kv_block_size: Positions in a block.
        num_threads: Threads of a step. Results are only bitwise equal with the same number of threads, so it
            belongs to the engine and not to the machine.
        weight_bytes_per_step: Minimum bytes of weights that a step reads, whatever the batch.
        compile_properties: Properties for OpenVINO.
        feature_layers: Layers whose hidden states a target returns and a trained head reads.
        reads_features: Whether this is a trained head.
        hidden_size: Features of a hidden state.
        state_bytes: Bytes of the recurrent states of a text; 0 for a network without.
        log_bytes: Bytes that a drafted token adds to them until it is accepted.
    """

    role: str
    recipe: str
    openvino_version: str
    vocab_size: int
    num_layers: int
    num_kv_heads: int
    head_size: int
    max_position_embeddings: int
    end_ids: tuple[int, ...]
    kv_block_size: int
    kv_cache_dtype: str
    attention: str
    linear: str
    num_threads: int
    weight_bytes_per_step: int
    compile_properties: dict[str, str]
    feature_layers: tuple[int, ...] = ()
    reads_features: bool = False
    hidden_size: int = 0
    state_bytes: int = 0
    log_bytes: int = 0

    @property
    def has_one_form(self) -> bool:
        """Whether a position has the same bits in a chunk and as a row (docs/decisions/exact-rows.md)."""
        return self.attention == "draftproof"

    @classmethod
    def read(cls, files: EngineFiles) -> EngineConfig:
        """Read ``engine.json``.

        Raises:
            EngineLoadError: The file is missing, changed or incomplete, or has another format version.
        """
        path = files.path("engine.json")
        content = files.read(path.name)
        try:
            document = json.loads(content)
            version = document["format_version"]
            document = {**_DEFAULTS, **document}
            fields = {field.name: document[field.name] for field in dataclasses.fields(cls)}
            lists = {name: tuple(fields[name]) for name in ("end_ids", "feature_layers")}
            config = cls(**{**fields, **lists})
        except (ValueError, KeyError, TypeError) as error:
            raise EngineLoadError(
                "the engine description cannot be read",
                values=f"{path}: {error!r}",
                limit="an engine directory contains engine.json, engine.xml and engine.bin",
                remedy="run 'draftproof engines'",
            ) from error
        if version not in FORMAT_VERSIONS:
            raise EngineLoadError(
                "the engine has another format",
                values=f"format_version={version} in {path}",
                limit=f"this version reads formats {FORMAT_VERSIONS[0]} and {FORMAT_VERSIONS[1]}",
                remedy="run 'draftproof engines'",
            )
        return config


class StepEngine(Protocol):
    """The interface of an engine; implemented by ``Engine``.

    Attributes:
        config: Its description.
        is_busy: Whether a step that was given up still runs, and writes into its blocks and slots.
        states: Hidden states after a step, until the next one: of a target with ``feature_layers`` those of
            all tokens, float32 [t, size]; of a trained head its own of ``logits_rows``, float32 [n, hidden].
    """

    config: EngineConfig
    states: npt.NDArray[np.float32] | None

    @property
    def is_busy(self) -> bool:
        """See above."""

    def step(self, inputs: StepInputs) -> npt.NDArray[np.float32]:
        """Compute one step and return logits, float32 [n, vocab_size]."""

    def copy_block(self, source: int, destination: int) -> None:
        """Copy the keys and values of one block to another."""

    def copy_slot(self, source: int, destination: int) -> None:
        """Copy the recurrent states of one slot to another."""


class Engine:
    """A compiled network with its KV cache.

    Args:
        files: Files of the engine.
        num_blocks: KV blocks to allocate, including the scratch block.
        config: Replaces ``engine.json``, to try other settings.
        weights_folder: Folder for the weights that OpenVINO has laid out for its kernels
            (``weights.Weights``); None to keep them in memory.
        num_slots: Slots of recurrent states to allocate.

    Attributes:
        max_num_tokens: Tokens of a step, beyond which a target would not be exact; None for no limit.

    Raises:
        EngineLoadError: Files are missing, changed, built for another OpenVINO, or do not compile; or a
            target is not exact; or it computes numbers that are not finite.
    """

    def __init__(
        self,
        files: EngineFiles,
        num_blocks: int,
        config: EngineConfig | None = None,
        weights_folder: Path | None = None,
        num_slots: int = 1,
    ) -> None:
        import openvino

        self.config = config or EngineConfig.read(files)
        self._directory = files.directory
        installed = openvino.__version__.split("-")[0]
        if installed.split(".")[:2] != self.config.openvino_version.split(".")[:2]:
            raise EngineLoadError(
                "the engine was built with another OpenVINO",
                values=f"built with {self.config.openvino_version}, installed {installed}",
                limit="major and minor version must be equal: the attention operator is not a stable format",
                remedy="run 'draftproof engines'",
            )
        if self.config.linear == "draftproof":
            weights_folder = None  # these products read the weights themselves, at each step
        self._weights = Weights(files.path("engine.bin"), files.sha256("engine.bin"), weights_folder)
        try:
            compiled, compiled_row = _compile(openvino, files, self._weights, self.config)
        except RuntimeError as error:
            raise _cannot_run(files, error) from error
        self._kv: list[npt.NDArray[Any]] = []
        self._states: list[npt.NDArray[Any]] = []
        caches = {}
        for port in compiled.inputs:
            name = port.get_any_name()
            leading = {
                "key_cache": (num_blocks,),
                "value_cache": (num_blocks,),
                "state": (num_slots,),
                "state_log": (num_slots, MAX_LOGGED_ROWS),
            }.get(name.split(".")[0])
            if leading is not None:
                sizes = [dim.get_length() for dim in list(port.get_partial_shape())[len(leading) :]]
                shape = openvino.Shape([*leading, *sizes])
                caches[name] = tensor = openvino.Tensor(port.get_element_type(), shape)
                tensor.data[...] = 0
                if "cache" in name:
                    self._kv.append(tensor.data)
                elif name.startswith("state."):
                    self._states.append(tensor.data)
        self._network = Network(compiled, caches, openvino.Tensor)
        self._row_network = compiled_row and Network(compiled_row, caches, openvino.Tensor)
        self._late: Network | None = None  # with a step that was given up, and may still be running
        self._least_tokens, self._repeats_lone_row = 2, False
        self.states: npt.NDArray[np.float32] | None = None
        try:  # also lays the weights out for the kernels, so that the originals can go
            self._try_lone_row()
            self.max_num_tokens = self._most_exact_tokens()
        except (RuntimeError, TimeoutError) as error:
            for network in filter(None, (self._network, self._row_network)):
                network.cancel()  # it reads the weights, which are unmapped with this object
            raise _cannot_run(files, error) from error
        if self.max_num_tokens is not None and self.max_num_tokens <= _CROWDS[0]:
            raise _is_not_exact(files, self.max_num_tokens)
        self._weights.release()

    @property
    def is_busy(self) -> bool:
        """Whether a step that was given up still runs."""
        if self._late is not None and self._late.has_ended():
            self._late = None
        return self._late is not None

    def step(self, inputs: StepInputs) -> npt.NDArray[np.float32]:
        """Compute one step and write its keys and values.

        Args:
            inputs: See ``step.pack``.

        Returns:
            float32 [n, vocab_size], one row for each of ``inputs.logits_rows``; a view that the next step
            overwrites.

        Raises:
            ValueError: A network with recurrent states got no slots.
            TimeoutError: The step took longer than ``STEP_TIMEOUT_S`` and its tokens allow.
            RuntimeError: The runtime failed, or an earlier step is still running.
        """
        token_bytes = len(inputs.input_ids) * self.config.weight_bytes_per_step
        limit_s = STEP_TIMEOUT_S[self.config.role] + _TIMEOUT_S_PER_TOKEN_AND_BYTE * token_bytes
        return self._run(inputs, limit_s)

    def _run(self, inputs: StepInputs, timeout_s: float) -> npt.NDArray[np.float32]:
        num_rows, num_tokens = len(inputs.logits_rows), len(inputs.input_ids)
        if self.config.reads_features:
            inputs = with_states(inputs, self.config.hidden_size, len(self.config.feature_layers))
        if not self.config.state_bytes:
            inputs = dataclasses.replace(inputs, slots=None)
        elif inputs.slots is None:
            raise ValueError("a step of a network with recurrent states names the slots of its sequences")
        inputs = with_tokens(inputs, self._least_tokens)
        if num_rows == 1 and self._repeats_lone_row:
            inputs = dataclasses.replace(inputs, logits_rows=np.repeat(inputs.logits_rows, 2))
        is_row = len(inputs.input_ids) == len(inputs.logits_rows) == 1
        is_row &= inputs.features is None or not len(inputs.features)
        network = self._row_network if is_row and self._row_network else self._network
        if self.is_busy:
            raise RuntimeError("an earlier step is still running")
        logits = network.compute(with_sequences(inputs, self.config.num_threads), timeout_s)
        if logits is None:
            self._late = network
            raise TimeoutError(f"a step took more than {timeout_s:.1f} s")
        if self.config.feature_layers:
            self.states = network.states()[: num_rows if self.config.reads_features else num_tokens]
        return logits[:num_rows]

    def _try_lone_row(self) -> None:
        """Find out whether a token alone, or a row of logits alone, has the bits that it has with others.

        OpenVINO multiplies a single row by another kernel: that of a layer always, that of the INT8 head if
        its inputs are not rounded, or if there are few (docs/decisions/exact-rows.md). The kernels of this
        machine decide, so they are tried here. Products of our own know rows only.
        """
        token_ids = np.arange(7, dtype=np.int32)  # a draft may read fewer tokens than it has logits
        limit_s = max(STEP_TIMEOUT_S.values())
        tokens = Chunk(token_ids, 0, (SCRATCH_BLOCK,), as_rows=False, num_logits=7, slot=NO_SLOT)
        together = pack([tokens], self.config.kv_block_size)
        expected = self._finite(self._run(together, limit_s), together)[-1].copy()
        found = self._run(dataclasses.replace(together, logits_rows=together.logits_rows[-1:]), limit_s)[0]
        self._repeats_lone_row = bool(np.ptp(expected) == 0) or not np.array_equal(found, expected)
        if self.config.linear == "draftproof":
            # Not the first position, where a dummy row writes.
            row = Chunk(token_ids[-1:], 1, (SCRATCH_BLOCK,), as_rows=True, num_logits=1, slot=NO_SLOT)
            alone = pack([row], self.config.kv_block_size)
            expected = self._run(alone, limit_s)[0].copy()
            self._least_tokens = 1
            if not np.array_equal(self._run(alone, limit_s)[0], expected):
                self._least_tokens = 2

    def _most_exact_tokens(self) -> int | None:
        """Return how many tokens a step may have so that a row has the bits that it has among two.

        On AVX2, OpenVINO's INT8 products add the inputs of a row up in another order from 81 rows on, and
        some from five on (docs/decisions/exact-rows.md). None is no limit. What a draft proposes may depend
        on other rows.
        """
        if self.config.role == "draft" or self.config.linear == "draftproof":
            return None
        row = Chunk(np.ones(1, np.int32), 1, (SCRATCH_BLOCK,), as_rows=True, num_logits=1, slot=NO_SLOT)
        limit_s = max(STEP_TIMEOUT_S.values())
        expected = None
        for exact, count in zip((0, *_CROWDS), _CROWDS, strict=False):
            inputs = pack([row] * count, self.config.kv_block_size)
            logits = self._finite(self._run(inputs, limit_s), inputs)
            expected = logits[0].copy() if expected is None else expected
            if (logits != expected).any():
                return exact
        return None

    def _finite(self, logits: npt.NDArray[np.float32], inputs: StepInputs) -> npt.NDArray[np.float32]:
        """Return the logits of a trial step, of which each row must have a best token.

        Raises:
            EngineLoadError: A row has none.
        """
        best = logits.max(axis=1)  # NaN if any number of the row is
        bad = np.flatnonzero(~np.isfinite(best))
        if not len(bad):
            return logits
        rows = bad[:_NUM_NAMED].tolist()
        raise EngineLoadError(
            "the engine computes numbers that are not finite",
            values=f"{self._directory}: the largest logit is {best[bad[0]]} in {len(bad)} of {len(logits)} "
            f"rows: {rows}, of the tokens {inputs.input_ids[inputs.logits_rows[rows]].tolist()}",
            limit="a finite largest logit in each row",
            remedy="check the checkpoint and its quantization: weights or scales may be damaged or have "
            "overflowed; then run 'draftproof engines'",
        )

    def copy_block(self, source: int, destination: int) -> None:
        """Copy the keys and values of one block to another."""
        for tensor in self._kv:
            tensor[destination] = tensor[source]

    def copy_slot(self, source: int, destination: int) -> None:
        """Copy the recurrent states of one slot to another, without their logs."""
        for tensor in self._states:
            tensor[destination] = tensor[source]


def _is_not_exact(files: EngineFiles, num_exact: int) -> EngineLoadError:
    crowd = (
        f"a row other bits among {_CROWDS[1]} rows than among two" if num_exact else "equal rows other bits"
    )
    return EngineLoadError(
        "an answer of this target would depend on what else it computes",
        values=f"{files.directory}: OpenVINO gives {crowd}",
        limit="the same bits in every step, without which a draft could change the output",
        remedy="install g++ where engines are built, set 'linear: draftproof' for the target in the recipe, "
        "and run 'draftproof engines'",
    )


def _cannot_run(files: EngineFiles, error: Exception) -> EngineLoadError:
    return EngineLoadError(
        "the engine does not run on this machine",
        values=f"{files.directory}: {next(iter(str(error).splitlines()), repr(error))}",
        limit="the network needs an x86-64 processor with AVX2",
        remedy="run 'draftproof doctor', then remove the engine and run 'draftproof engines'",
    )


def _compile(openvino: Any, files: EngineFiles, weights: Weights, config: EngineConfig) -> tuple[Any, Any]:
    network = files.read("engine.xml").decode()
    tensor = openvino.Tensor(weights.data, shared_memory=True)
    operators = operator_library(files)
    with ThreadPoolExecutor(1) as pool:  # compiling leaves CPU cores idle
        digest = pool.submit(sha256_bytes, weights.data.data)
        try:
            return compile_networks(openvino, network, tensor, config, operators)
        finally:  # also after an error, whose likely cause are changed weights
            check_digest(files.path("engine.bin"), files.sha256("engine.bin"), digest.result())
