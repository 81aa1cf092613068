"""Writes random trained heads in the three published formats, and computes what they return with torch.

The reference follows the paper (EAGLE-3, arXiv:2503.01840) and the published settings, in float64, without a
cache: all positions are computed anew for each drafted token.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from build.checkpoints.tensor_file import Float32Array, Tensor, write_tensors

HIDDEN, INNER, VOCAB = 128, 192, 2048


@dataclass(frozen=True)
class RandomHead:
    """A head of a target of 128 features and 2048 tokens; names of tensors are those within the layer."""

    heads: int = 4
    kv_heads: int = 2
    size: int = 32
    rows: int = 300
    theta: float = 1e4
    norms_residual: bool = False
    has_head_norms: bool = False
    layers: tuple[int, ...] = (2, 3, 3)  # the defaults for a target of 6 layers
    tensors: dict[str, Float32Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Draw the weights."""
        rng = np.random.default_rng(self.heads * self.size + self.rows)
        shapes = {
            "self_attn.q_proj": (self.heads * self.size, 2 * HIDDEN),
            "self_attn.k_proj": (self.kv_heads * self.size, 2 * HIDDEN),
            "self_attn.v_proj": (self.kv_heads * self.size, 2 * HIDDEN),
            "self_attn.o_proj": (HIDDEN, self.heads * self.size),
            "mlp.gate_proj": (INNER, HIDDEN),
            "mlp.up_proj": (INNER, HIDDEN),
            "mlp.down_proj": (HIDDEN, INNER),
            "fc": (HIDDEN, len(self.layers) * HIDDEN),
            "lm_head": (self.rows, HIDDEN),
        }
        for name, shape in shapes.items():
            values = 1.5 * rng.standard_normal(shape) / shape[1] ** 0.5
            self.tensors[name] = values.astype(np.float32)
        norms = dict.fromkeys(("input_layernorm", "post_attention_layernorm", "hidden_norm", "norm"), HIDDEN)
        if self.has_head_norms:
            norms |= {"self_attn.q_norm": self.size, "self_attn.k_norm": self.size}
        for name, size in norms.items():
            self.tensors[name] = (1 + 0.2 * rng.standard_normal(size)).astype(np.float32)

    @property
    def tokens(self) -> npt.NDArray[np.int64]:
        """Return the token of each row of the output head."""
        return np.sort(np.random.default_rng(3).permutation(VOCAB)[: self.rows])

    def save(self, directory: Path, form: str, **changes: Any) -> Path:
        """Write the checkpoint; keyword arguments replace keys of the layer's settings, None removes one."""
        layer = {
            "hidden_size": HIDDEN,
            "intermediate_size": INNER,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.size,
            "num_hidden_layers": 1,
            "vocab_size": VOCAB,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5,
            "hidden_act": "silu",
            "rope_theta": self.theta,
            "model_type": "qwen3" if self.has_head_norms else "llama",
        }
        rows = {"draft_vocab_size": self.rows}
        key = "eagle_aux_hidden_state_layer_ids"
        if form == "speculators":
            config: dict[str, Any] = {
                "architectures": ["Eagle3Speculator"],
                "speculators_model_type": "eagle3",
                "norm_before_residual": self.norms_residual,
                key: list(self.layers),
                "transformer_layer_config": {**layer, **changes},
                **rows,
            }
        else:
            config = {"architectures": ["LlamaForCausalLMEagle3"], **layer, **rows, **changes}
            config["eagle_config"] = {key: [each - 1 for each in self.layers]}
            config["norm_before_residual"] = self.norms_residual
        if form == "angelslim":  # as if output head and embedding were one, which they are not
            config |= {"architectures": ["Eagle3LlamaForCausalLM"], "tie_word_embeddings": True}
            del config["eagle_config"], config["norm_before_residual"]
        directory.mkdir(parents=True)
        path = directory / "config.json"
        path.write_text(json.dumps({name: each for name, each in config.items() if each is not None}))
        prefix = "layers.0." if form == "speculators" else "midlayer."
        named = {
            f"{'' if name in ('fc', 'norm', 'lm_head') else prefix}{name}.weight": Tensor(
                "F32", each.shape, each
            )
            for name, each in self.tensors.items()
        }
        if self.rows < VOCAB:
            offsets = self.tokens - np.arange(self.rows)
            named["d2t"] = Tensor("I64", offsets.shape, offsets)
            named["t2d"] = Tensor("BOOL", (VOCAB,), np.isin(np.arange(VOCAB), self.tokens))
        write_tensors(directory / "model.safetensors", named)
        return directory

    def reference(
        self, embedding: Float32Array, token_ids: Iterable[int], features: Float32Array
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return logits [t, vocab] and hidden states [t, hidden]; tokens without features are drafted."""
        import torch

        weights = {name: torch.tensor(each, dtype=torch.float64) for name, each in self.tensors.items()}
        embedded = torch.tensor(embedding[list(token_ids)], dtype=torch.float64)
        states = torch.tensor(features, dtype=torch.float64) @ weights["fc"].T

        def norm(x: Any, name: str) -> Any:
            return x * torch.rsqrt((x**2).mean(-1, keepdim=True) + 1e-5) * weights[name]

        def heads_of(x: Any, kind: str, count: int) -> Any:
            made = (x @ weights[f"self_attn.{kind}_proj"].T).view(len(x), count, self.size)
            if self.has_head_norms and kind != "v":
                made = norm(made, f"self_attn.{kind}_norm")
            if kind != "v":
                powers = torch.arange(0, self.size, 2, dtype=torch.float64) / self.size
                angles = torch.arange(len(x), dtype=torch.float64)[:, None] * self.theta**-powers
                cos, sin = angles.cos()[:, None], angles.sin()[:, None]
                low, high = made.chunk(2, -1)
                made = torch.cat([low * cos - high * sin, high * cos + low * sin], -1)
            return made.repeat_interleave(self.heads // count, 1).transpose(0, 1)

        def layer(states: Any) -> Any:
            normed = norm(states, "hidden_norm")
            both = torch.cat([norm(embedded[: len(states)], "input_layernorm"), normed], -1)
            query, key, value = (
                heads_of(both, kind, count)
                for kind, count in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads))
            )
            mask = torch.full((len(states), len(states)), -torch.inf, dtype=torch.float64).triu(1)
            shares = torch.softmax(query @ key.transpose(1, 2) / self.size**0.5 + mask, -1)
            attended = (shares @ value).transpose(0, 1).reshape(len(states), -1)
            x = (normed if self.norms_residual else states) + attended @ weights["self_attn.o_proj"].T
            inner = norm(x, "post_attention_layernorm")
            gated = torch.nn.functional.silu(inner @ weights["mlp.gate_proj"].T)
            return x + (gated * (inner @ weights["mlp.up_proj"].T)) @ weights["mlp.down_proj"].T

        while len(states) < len(embedded):
            states = torch.cat([states, layer(states)[-1:]])
        hidden = layer(states)
        logits = torch.full((len(states), VOCAB), -torch.inf, dtype=torch.float64)
        rows = norm(hidden, "norm") @ weights["lm_head"].T
        logits[:, self.tokens if self.rows < VOCAB else slice(None)] = rows
        return logits.numpy(), hidden.numpy()
