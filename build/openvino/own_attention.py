"""Write attention as our operation: ``build/operators/attention`` alone knows the layout of the cache."""

from __future__ import annotations

from typing import Any

import openvino as ov

from build.networks.config import NetworkConfig
from build.openvino.operations import parameter
from build.openvino.own_operators import own_operation
from pipelines.engine_memory import block_bytes
from pipelines.errors import EngineBuildError

KV_BLOCK_SIZE = 32  # tokens
_HEAD_STEP = 16  # features: the kernel's registers
_INPUTS = ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins")


class OwnAttention:
    """Attention of our own over caches of bytes.

    Args:
        config: Settings of the network.
        kv_cache_dtype: ``float32``, ``float16`` or ``int8``.

    Raises:
        EngineBuildError: The kernel does not know the size of the heads.
    """

    def __init__(self, config: NetworkConfig, kv_cache_dtype: str) -> None:
        if config.head_size % _HEAD_STEP:
            raise EngineBuildError(
                "the attention operator cannot compute heads of this size",
                values=f"head_size={config.head_size}",
                limit=f"multiples of {_HEAD_STEP}",
                remedy="set 'attention: openvino' in the recipe"
                if config.attention_softcap is None
                else "use another model: only this operator caps attention scores",
            )
        self._config = config
        self._dtype = kv_cache_dtype

    def cache(self, name: str) -> Any:
        """Return the input for the keys, or the values, of a layer."""
        config = self._config
        sizes = (config.num_key_value_heads, config.head_size, self._dtype)
        keys_and_values = block_bytes(KV_BLOCK_SIZE, 1, *sizes)
        return parameter(name, [-1, keys_and_values // 2], ov.Type.u8)

    def attend(
        self, query_key_value: list[Any], caches: list[Any], inputs: dict[str, Any], window: int
    ) -> Any:
        """See ``paged_attention.PagedAttention.attend``."""
        config = self._config
        arguments = [*query_key_value, *caches, *(inputs[name] for name in _INPUTS)]
        attributes = {
            "num_heads": config.num_attention_heads,
            "num_kv_heads": config.num_key_value_heads,
            "head_size": config.head_size,
            "scale": float(config.attention_scale),
            "softcap": config.attention_softcap or 0.0,
            "window": window,
            "kv_cache_dtype": self._dtype,
        }
        return own_operation("Attention", arguments, attributes)
