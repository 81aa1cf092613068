"""Loads an engine and computes its steps.

An engine directory contains ``engine.xml``, ``engine.bin`` and ``engine.json``, written by
``build/openvino/engine.py``. ``scheduler`` decides what a step computes.

The weights are copied to where only this process can change them, and checked there. OpenVINO would map the
file and read it again for each new shape of a step, even if it has changed by then
(docs/decisions/engines.md).
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pipelines.engine_memory import MAX_LOGGED_ROWS
from pipelines.errors import EngineLoadError
from pipelines.executor.engine_config import EngineConfig
from pipelines.executor.kv_cache import SCRATCH_BLOCK
from pipelines.executor.network import Model, Network, Shape, operator_library
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
from pipelines.speculation.token_ids import Logits

_LOG = logging.getLogger(__name__)

STEP_TIMEOUT_S = {"draft": 5.0, "target": 120.0}
"""Time limit of a short step by role: requests can continue without the draft, but not without the target."""

_TIMEOUT_S_PER_TOKEN_AND_BYTE = 5e-11
"""Time that each token of a step adds for each byte of the weights, as on a single busy core."""

_SMALL_STEPS = {
    # It reads two tokens after a round whose draft was accepted as a whole.
    "draft": ((1, 1), (2, 1), (2, 2), (3, 3), (4, 4)),
    "head": ((1, 1),),
    "target": tuple((rows, rows) for rows in range(1, 10)),
}
"""Tokens and rows of logits of the steps that are frequent while one or a few requests are answered."""


class StepEngine(Protocol):
    """The interface of an engine; implemented by ``Engine``.

    Attributes:
        config: Its description.
        block_bytes: Bytes of keys and values in a block.
        kernels: Digest of what this machine's kernels make of some tokens.
        is_busy: Whether a step that was given up still runs, and writes into its blocks and slots.
        states: Hidden states after a step, until the next one: of a target with ``feature_layers`` those of
            all tokens, float32 [t, size]; of a trained head its own of ``logits_rows``, float32 [n, hidden].
    """

    config: EngineConfig
    block_bytes: int
    kernels: str
    states: npt.NDArray[np.float32] | None

    @property
    def is_busy(self) -> bool:
        """See above."""

    def compile_small_network(self) -> bool:
        """Prepare what makes steps of one small size faster; return False if nothing is left to prepare.

        Called on another thread than the steps.
        """

    def adopt_small_networks(self) -> None:
        """Use what was prepared from now on."""

    def step(self, inputs: StepInputs) -> Logits:
        """Compute one step and return logits, float32 [n, vocab_size]."""

    def copy_block(self, source: int, destination: int) -> None:
        """Copy the keys and values of one block to another."""

    def read_block(self, block: int) -> bytes:
        """Return a copy of the keys and values of a block."""

    def write_block(self, block: int, content: memoryview) -> None:
        """Replace the keys and values of a block by those that ``read_block`` returned."""

    def copy_slot(self, source: int, destination: int) -> None:
        """Copy the recurrent states of one slot to another."""


@dataclass(frozen=True)
class StepRules:
    """What the steps of an engine have to keep so that a decode token has the same bits in each.

    Attributes:
        least_tokens: Fewest tokens of a step.
        repeats_lone_row: Whether a single row of logits is computed twice.
        max_num_tokens: Most tokens of a step; None for no limit.
    """

    least_tokens: int = 2
    repeats_lone_row: bool = False
    max_num_tokens: int | None = None


class Engine:
    """A compiled network with its KV cache; ``loading.load_engine`` returns one that has been checked.

    Attributes:
        config: Its description.
        block_bytes: Bytes of keys and values in a block.
        directory: Its directory.
        kernels: Digest of the keys and values of the checks: of equal ones on two machines, or after an
            update, the kernels were the same.
        rules: What its steps keep to.

    Args:
        files: Files of the engine.
        num_blocks: KV blocks to allocate, including the scratch block.
        config: Replaces ``engine.json``, to try other settings.
        weights_folder: Folder for the weights that OpenVINO has laid out for its kernels
            (``weights.Weights``); None to keep them in memory.
        num_slots: Slots of recurrent states to allocate.

    Raises:
        EngineLoadError: Files are missing, changed, built for another OpenVINO, or do not compile.
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
        self.directory = files.directory
        self.kernels = ""
        self.rules = StepRules()
        self.states: npt.NDArray[np.float32] | None = None
        installed = openvino.__version__.split("-")[0]
        if installed.split(".")[:2] != self.config.openvino_version.split(".")[:2]:
            raise EngineLoadError(
                f"the engine was built with OpenVINO {self.config.openvino_version}, and {installed} is "
                "installed: its attention operator is not a stable format",
                "run 'draftproof engines'",
            )
        if self.config.linear == "draftproof":
            weights_folder = None  # these products read the weights themselves, at each step
        self._weights = Weights(files.path("engine.bin"), files.sha256("engine.bin"), weights_folder)
        try:
            model, compiled = _compile(openvino, files, self._weights, self.config)
        except RuntimeError as error:
            raise cannot_run(files.directory, error) from error
        caches = self._allocate(openvino, compiled, num_blocks, num_slots)
        self.block_bytes = sum(tensor[SCRATCH_BLOCK].nbytes for tensor in self._kv)
        self._network = Network(compiled, caches, openvino.Tensor)
        self._small_networks: dict[Shape | None, Network] = {}
        self._untried_networks: list[tuple[Shape, Network]] = []
        self._small_shapes: list[Shape] = []
        if self.config.linear == "draftproof":
            role = "head" if self.config.reads_features else self.config.role
            least = self.config.num_threads
            self._small_shapes = [Shape(*size, max(size[0], least)) for size in _SMALL_STEPS[role]]

        def network_of(shape: Shape) -> Network:
            return Network(model.compiled(shape), caches, openvino.Tensor)

        self._network_of = network_of
        self._late: Network | None = None  # with a step that was given up, and may still be running

    def _allocate(self, openvino: Any, compiled: Any, num_blocks: int, num_slots: int) -> dict[str, Any]:
        """Return the tensors that the network keeps between steps, by name, filled with zeros."""
        self._kv: list[npt.NDArray[Any]] = []
        self._states: list[npt.NDArray[Any]] = []
        kept = {}
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
                kept[name] = tensor = openvino.Tensor(port.get_element_type(), shape)
                tensor.data[...] = 0
                if "cache" in name:
                    self._kv.append(tensor.data)
                elif name.startswith("state."):
                    self._states.append(tensor.data)
        return kept

    def cancel(self) -> None:
        """End a step that was given up: it reads the weights, which are unmapped with this object."""
        self._network.cancel()

    def release_weights(self) -> None:
        """Give the memory of the original weights back: the first steps laid them out for the kernels."""
        self._weights.release()

    def compile_small_network(self) -> bool:
        """Compile the network of one of the small steps that are frequent; return False if all are compiled.

        Unless all shapes are fixed, OpenVINO infers the shape of each operation and plans its memory again in
        each step. That is 7 % of a step of a target of 1.5B, and 10 % if the number of rows has changed.
        Products of our own do not copy the weights for another network. Compiling one takes a second, so a
        thread does it when the server is idle.
        """
        if not self._small_shapes:
            return False
        shape = self._small_shapes.pop(0)
        self._untried_networks.append((shape, self._network_of(shape)))
        return True

    def adopt_small_networks(self) -> None:
        """Use the networks that were compiled, if they compute the same bits."""
        while self._untried_networks:
            shape, network = self._untried_networks.pop()
            token_ids = np.arange(shape.num_tokens, dtype=np.int32)
            tokens = Chunk(
                token_ids, 1, (SCRATCH_BLOCK,), is_decode=True, num_logits=shape.num_rows, slot=NO_SLOT
            )
            inputs = pack([tokens], self.config.kv_block_size)
            expected = run_slowly(self, inputs, self.rules).copy()
            self._small_networks[shape] = network
            is_same = False
            try:
                is_same = np.array_equal(run_slowly(self, inputs, self.rules), expected)
            finally:
                if not is_same:
                    _LOG.warning(
                        "OpenVINO computes other bits with fixed shapes: %s; they stay unused", shape
                    )
                    del self._small_networks[shape]

    @property
    def is_busy(self) -> bool:
        """Whether a step that was given up still runs."""
        if self._late is not None and self._late.has_ended():
            self._late = None
        return self._late is not None

    def step(self, inputs: StepInputs) -> Logits:
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
        return self.run(inputs, self.rules, limit_s)

    def run(self, inputs: StepInputs, rules: StepRules, timeout_s: float) -> Logits:
        """Compute one step by other rules and another time limit; else as ``step``."""
        num_rows, num_tokens = len(inputs.logits_rows), len(inputs.input_ids)
        if self.config.reads_features:
            inputs = with_states(inputs, self.config.hidden_size, len(self.config.feature_layers))
        if not self.config.state_bytes:
            inputs = replace(inputs, slots=None)
        elif inputs.slots is None:
            raise ValueError("a step of a network with recurrent states names the slots of its sequences")
        inputs = with_tokens(inputs, rules.least_tokens)
        if num_rows == 1 and rules.repeats_lone_row:
            inputs = replace(inputs, logits_rows=np.repeat(inputs.logits_rows, 2))
        inputs = with_sequences(inputs, self.config.num_threads)
        network = self._small_networks.get(Shape.of(inputs), self._network)
        if self.is_busy:
            raise RuntimeError("an earlier step is still running")
        logits = network.compute(inputs, timeout_s)
        if logits is None:
            self._late = network
            raise TimeoutError(f"a step took more than {timeout_s:.1f} s")
        if self.config.feature_layers:
            self.states = network.states()[: num_rows if self.config.reads_features else num_tokens]
        return logits[:num_rows]

    def copy_block(self, source: int, destination: int) -> None:
        """Copy the keys and values of one block to another."""
        for tensor in self._kv:
            tensor[destination] = tensor[source]

    def read_block(self, block: int) -> bytes:
        """Return a copy of the keys and values of a block."""
        return b"".join(_bytes_of(tensor[block]).data for tensor in self._kv)

    def write_block(self, block: int, content: memoryview) -> None:
        """Replace the keys and values of a block by those that ``read_block`` returned."""
        begin = 0
        for tensor in self._kv:
            part = _bytes_of(tensor[block])
            part[:] = np.frombuffer(content, np.uint8, len(part), begin)
            begin += len(part)

    def copy_slot(self, source: int, destination: int) -> None:
        """Copy the recurrent states of one slot to another, without their logs."""
        for tensor in self._states:
            tensor[destination] = tensor[source]


def _bytes_of(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return a view of an array whose elements lie together."""
    return array.reshape(-1).view(np.uint8)


def run_slowly(engine: Engine, inputs: StepInputs, rules: StepRules) -> Logits:
    """Compute one step that may take as long as any: the first of a size prepares its kernels."""
    return engine.run(inputs, rules, max(STEP_TIMEOUT_S.values()))


def cannot_run(directory: Path, error: Exception) -> EngineLoadError:
    """Return the error of an engine that this machine does not run."""
    return EngineLoadError(
        f"the engine {directory} does not run on this machine, which must be an x86-64 processor with AVX2: "
        f"{next(iter(str(error).splitlines()), repr(error))}",
        "run 'draftproof doctor', then remove the engine and run 'draftproof engines'",
    )


def _compile(openvino: Any, files: EngineFiles, weights: Weights, config: EngineConfig) -> tuple[Model, Any]:
    network = files.read("engine.xml").decode()
    tensor = openvino.Tensor(weights.data, shared_memory=True)
    operators = operator_library(files)
    with ThreadPoolExecutor(1) as pool:  # compiling leaves CPU cores idle
        digest = pool.submit(sha256_bytes, weights.data.data)
        try:
            model = Model(openvino, network, tensor, config, operators)
            return model, model.compiled()
        finally:  # also after an error, whose likely cause are changed weights
            check_digest(files.path("engine.bin"), files.sha256("engine.bin"), digest.result())
