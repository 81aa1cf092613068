"""Calls the recurrence kernel as numpy arrays, and computes the same in float64."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from build.networks.recurrent import CONVOLUTION_TAPS, RecurrentSizes, RecurrentWeights
from build.openvino.own_recurrence import OwnRecurrence
from tests.unit.build.operators.calls import compile_calls

EPSILON = 1e-6
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int) for name in ("num_key_heads", "num_value_heads", "key_size", "value_size")),
        ("norm_epsilon", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("convolution", "rates", "biases", "norm")),
    )


class _Step(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("projected", "states", "logs")),
        *((name, ctypes.c_int) for name in ("num_slots", "num_log_rows")),
        *((name, ctypes.c_void_p) for name in ("past_lens", "sequence_begins", "slots")),
        ("num_sequences", ctypes.c_int),
        ("output", ctypes.c_void_p),
    )


def compile_kernel(folder: Path) -> ctypes.CDLL:
    """Compile both forms of the kernel."""
    source = Path(__file__).with_name("kernel_calls.cpp")
    return compile_calls(folder, source, "recurrence_avx2", "recurrence_avx512")


def draw_weights(sizes: RecurrentSizes, rng: np.random.Generator) -> RecurrentWeights:
    heads = sizes.num_value_heads
    return RecurrentWeights(
        convolution=rng.standard_normal((CONVOLUTION_TAPS, sizes.channels)).astype(np.float32),
        rates=rng.uniform(0.01, 16, heads).astype(np.float32),
        biases=rng.uniform(-6, 1, heads).astype(np.float32),
        norm=rng.uniform(0.5, 1.5, sizes.value_size).astype(np.float32),
    )


def draw_rows(sizes: RecurrentSizes, count: int, rng: np.random.Generator) -> Floats:
    return (1.5 * rng.standard_normal((count, sizes.width)) + 0.1).astype(np.float32)


@dataclass(frozen=True)
class Piece:
    """Rows [n, width] of a request in a step, as one sequence or one by one; see ``OwnRecurrence.recur``."""

    rows: Floats
    past_len: int
    slot: int
    as_rows: bool

    def sequences(self) -> list[tuple[int, int]]:
        """Return of each sequence the tokens before it, and its length."""
        if self.as_rows:
            return [(self.past_len + row, 1) for row in range(len(self.rows))]
        return [(self.past_len, len(self.rows))]


def step_inputs(pieces: tuple[Piece, ...]) -> dict[str, npt.NDArray[np.int32]]:
    """Return the step's inputs beside its rows."""
    sequences = [(piece.slot, *sequence) for piece in pieces for sequence in piece.sequences()]
    slots, past_lens, lengths = (np.array(column, np.int32) for column in zip(*sequences, strict=True))
    begins = np.cumsum([0, *lengths], dtype=np.int32)
    return {"past_lens": past_lens, "subsequence_begins": begins, "slots": slots}


class Kernel:
    """The kernel of a layer with tables of its own."""

    def __init__(
        self,
        calls: ctypes.CDLL,
        sizes: RecurrentSizes,
        weights: RecurrentWeights,
        *,
        num_slots: int = 4,
        num_log_rows: int = 8,
        is_wide: bool = False,
    ) -> None:
        self.sizes = sizes
        self._weights = weights
        self._calls = calls
        self._is_wide = is_wide
        own = OwnRecurrence(sizes, EPSILON)
        # Whatever a slot held before must not matter: 255 is NaN in floating point.
        self.states = np.full((num_slots, own.state_bytes), 255, np.uint8)
        self.logs = np.full((num_slots, num_log_rows, own.log_bytes), 255, np.uint8)

    def step(self, *pieces: Piece, num_threads: int = 1) -> list[Floats]:
        """Return the outputs [n, value_channels] of each piece."""
        sizes, weights, inputs = self.sizes, self._weights, step_inputs(pieces)
        rows = np.concatenate([piece.rows for piece in pieces])
        guarded = np.full((len(rows) + 1, sizes.value_channels), 7, np.float32)
        layer = _Layer(
            *(sizes.num_key_heads, sizes.num_value_heads, sizes.key_size, sizes.value_size, EPSILON),
            *(
                array.ctypes.data
                for array in (weights.convolution, weights.rates, weights.biases, weights.norm)
            ),
        )
        step = _Step(
            *(array.ctypes.data for array in (rows, self.states, self.logs)),
            *self.logs.shape[:2],
            *(array.ctypes.data for array in inputs.values()),
            len(inputs["slots"]),
            guarded.ctypes.data,
        )
        self._calls.recur(
            ctypes.byref(layer), ctypes.byref(step), ctypes.c_bool(self._is_wide), ctypes.c_int(num_threads)
        )
        assert np.all(guarded[-1] == 7), "written behind the last row"
        return np.split(guarded[:-1], np.cumsum([len(piece.rows) for piece in pieces])[:-1])


def expected_output(sizes: RecurrentSizes, weights: RecurrentWeights, rows: Floats) -> Doubles:
    """Return the outputs [n, value_channels] of a whole request in float64."""
    keys, heads = sizes.num_key_heads * sizes.key_size, sizes.num_value_heads
    inputs, gates, b, a = np.split(
        rows.astype(np.float64), np.cumsum([sizes.channels, sizes.value_channels, heads]), axis=1
    )
    padded = np.concatenate([np.zeros((CONVOLUTION_TAPS - 1, sizes.channels)), inputs])
    mixed = _silu(
        sum(weights.convolution[tap] * padded[tap : tap + len(rows)] for tap in range(CONVOLUTION_TAPS))
    )
    query, key, value = np.split(mixed, [keys, 2 * keys], axis=1)
    group = heads // sizes.num_key_heads
    query, key = (
        np.repeat(_of_length_1(each.reshape(len(rows), -1, sizes.key_size)), group, axis=1)
        for each in (query, key)
    )
    query = query / np.sqrt(sizes.key_size)
    value = value.reshape(len(rows), heads, sizes.value_size)
    beta = 1 / (1 + np.exp(-b))
    decay = np.exp(-weights.rates.astype(np.float64) * np.logaddexp(0, a + weights.biases))
    state = np.zeros((heads, sizes.key_size, sizes.value_size))
    read = []
    for row in range(len(rows)):
        state = state * decay[row][:, None, None]
        found = np.einsum("hkv,hk->hv", state, key[row])
        correction = beta[row][:, None] * (value[row] - found)
        state = state + key[row][:, :, None] * correction[:, None, :]
        read.append(np.einsum("hkv,hk->hv", state, query[row]))
    outputs = np.stack(read)
    normed = weights.norm * outputs / np.sqrt(np.mean(outputs**2, axis=2, keepdims=True) + EPSILON)
    return normed.reshape(len(rows), -1) * _silu(gates)


def _silu(x: Doubles) -> Doubles:
    return x / (1 + np.exp(-x))


def _of_length_1(x: Doubles) -> Doubles:
    return x / np.sqrt(np.sum(x**2, axis=-1, keepdims=True) + 1e-6)
