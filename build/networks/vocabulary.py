"""Fit a draft's vocabulary to its target's.

Networks with one tokenizer may have embeddings of different sizes, because trainers pad them differently:
Qwen2.5 has 151,936 rows in small models and 152,064 in large ones. No token has these rows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from build.checkpoints.tensor_file import AnyArray, Tensor
from build.networks.network import Network

_NEVER = -1e4  # added to the logit of a row that the draft does not have


def fit_vocabulary(network: Network, vocab_size: int) -> Network:
    """Return the network with rows cut off, or with new rows whose tokens it never proposes.

    Args:
        network: Its embedding is not quantized.
        vocab_size: Number of rows to reach.
    """
    missing = vocab_size - network.config.vocab_size
    if missing == 0:
        return network
    head = network.lm_head
    if missing > 0:
        bias = np.zeros(network.config.vocab_size, np.float32) if head.bias is None else head.bias
        head = replace(head, bias=np.append(bias, np.full(missing, _NEVER, np.float32)))
    elif head.bias is not None:
        head = replace(head, bias=head.bias[:vocab_size])
    embedding = _with_rows(network.embedding, vocab_size)
    is_tied = network.lm_head.weight is network.embedding
    head = replace(
        head,
        weight=embedding if is_tied else _with_rows(head.weight, vocab_size),
        scale=_resized_per_row(head.scale, vocab_size),
        zero_point=_resized_per_row(head.zero_point, vocab_size),
    )
    return replace(
        network,
        config=replace(network.config, vocab_size=vocab_size),
        embedding=embedding,
        lm_head=head,
    )


def _with_rows(table: Tensor, rows: int) -> Tensor:
    data = _resized(table.data, rows)
    return Tensor(table.dtype, data.shape, data)


def _resized_per_row(values: AnyArray | None, rows: int) -> AnyArray | None:
    """Return scales or zero points with other rows; a single row belongs to the whole weight."""
    return values if values is None or len(values) == 1 else _resized(values, rows)


def _resized(values: AnyArray, rows: int) -> AnyArray:
    if len(values) >= rows:
        return values[:rows]
    return np.concatenate([values, np.zeros((rows - len(values), *values.shape[1:]), values.dtype)])
