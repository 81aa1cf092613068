"""A head of EAGLE-3 (Li et al. 2025, arXiv 2503.01840) in torch, in the format of SpecForge and SGLang.

It is a decoder layer that reads a token and the target's hidden states at the position before, and proposes
the token behind. Its position j is that of token j + 1 of a text; the first token has none. For tokens that
it has proposed itself, its own output takes the place of the target's states.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from build.checkpoints.tensor_file import Tensor, write_tensors
from build.hugging_face.write import hugging_face_config
from build.networks.network import Network, NetworkConfig
from build.networks.rotary import rotary_frequencies
from pipelines.atomic_file import write_whole

_LAYER, _ATTENTION, _MLP = "midlayer.", "midlayer.self_attn.", "midlayer.mlp."
FROZEN = "lm_head.weight"
"""The weight that is not trained: rows of the target's output matrix."""


@dataclass(frozen=True)
class Head:
    """A head and what it needs of its target.

    Attributes:
        target: Settings of the target; the head has its heads, positions and norms.
        embedding: The target's, [vocab, hidden].
        weights: float32, by the names of ``model.safetensors``.
        token_ids: int64 [n], the target's token of each logit, ascending.
    """

    target: NetworkConfig
    embedding: Tensor
    weights: dict[str, torch.Tensor]
    token_ids: torch.Tensor

    def unroll(
        self, text: torch.Tensor, features: torch.Tensor, rows: torch.Tensor, steps: int, thinning: int = 1
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Propose tokens behind rows of a text, as a server does, but let the text say what follows.

        Args:
            text: int64 [t], token ids.
            features: float32 [t, size], the target's states.
            rows: int64 [m], positions of the head, below t - 1.
            steps: Number of tokens to propose behind each row.
            thinning: Each step after the first leaves out all but every such row.

        Yields:
            For each step s from 0 on, as long as rows j are left, these and the logits [rows, n] of token
            j + s + 2.
        """
        hidden = functional.linear(features[:-1], self.weights["fc.weight"])
        positions = torch.arange(len(text) - 1)
        query, keys, values = self._query_key_value(text[1:], hidden, positions)
        query, hidden, proposed = query[:, rows], hidden[rows], rows[:0]
        for step in range(steps):
            if step:
                left = torch.nonzero(rows + step + 1 < len(text))[::thinning, 0]
                if not len(left):
                    return
                rows, hidden = rows[left], hidden[left]
                query, key, value = self._query_key_value(text[rows + step + 1], hidden, rows + step)
                keys, values = torch.cat([keys, key], 1), torch.cat([values, value], 1)
                proposed = torch.cat([proposed, rows])
            # A row sees the text before it, and what was proposed behind it.
            visible = torch.cat([positions <= rows[:, None], proposed == rows[:, None]], 1)
            attended = functional.scaled_dot_product_attention(
                query[None], keys[None], values[None], attn_mask=visible, enable_gqa=True
            )
            hidden = hidden + self._linear(attended[0].transpose(0, 1).flatten(1), f"{_ATTENTION}o_proj")
            normed = self._norm(hidden, f"{_LAYER}post_attention_layernorm")
            gated = functional.silu(self._linear(normed, f"{_MLP}gate_proj"))
            hidden = hidden + self._linear(gated * self._linear(normed, f"{_MLP}up_proj"), f"{_MLP}down_proj")
            yield rows, self._linear(self._norm(hidden, "norm"), "lm_head")

    def _query_key_value(
        self, token_ids: torch.Tensor, hidden: torch.Tensor, positions: torch.Tensor
    ) -> list[torch.Tensor]:
        """Return rotated queries, rotated keys, and values, [heads, m, size]."""
        rows = self.embedding.data[token_ids.numpy()]
        embedded = torch.from_numpy(Tensor(self.embedding.dtype, rows.shape, rows).to_float32())
        normed = [
            self._norm(embedded, f"{_LAYER}input_layernorm"),
            self._norm(hidden, f"{_LAYER}hidden_norm"),
        ]
        rotary = self.target.layers[-1].rotary
        assert rotary is not None
        angles = positions[:, None] * torch.from_numpy(rotary_frequencies(rotary)).repeat(2)
        cosines, sines = angles.cos(), angles.sin()
        made = []
        for name in "qkv":
            x = self._linear(torch.cat(normed, 1), f"{_ATTENTION}{name}_proj")
            x = x.view(len(x), -1, self.target.head_size).transpose(0, 1)
            first, second = x.chunk(2, dim=-1)
            made.append(x if name == "v" else x * cosines + torch.cat([-second, first], -1) * sines)
        return made

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(x, self.weights[f"{name}.weight"])

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.rms_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], self.target.norm_epsilon)

    def write(self, directory: Path) -> None:
        """Write ``model.safetensors``, in float16, and ``config.json``."""
        directory.mkdir(parents=True, exist_ok=True)
        arrays = {name: weight.detach().numpy() for name, weight in self.weights.items()}
        tensors = {name: Tensor.from_float32(array, "F16") for name, array in arrays.items()}
        kept, is_kept = self.token_ids.numpy(), np.zeros(self.target.vocab_size, np.bool_)
        is_kept[kept] = True
        tensors["d2t"] = Tensor("I64", kept.shape, kept - np.arange(len(kept)))
        tensors["t2d"] = Tensor("BOOL", is_kept.shape, is_kept)
        write_tensors(directory / "model.safetensors", tensors, {"format": "pt"})
        config = replace(
            self.target,
            architecture="LlamaForCausalLM",
            dtype="float16",
            layers=self.target.layers[-1:],
            intermediate_size=len(arrays[f"{_MLP}gate_proj.weight"]),
            share_embedding_table=False,
        )
        settings = hugging_face_config(config, (0,)) | {
            "architectures": ["LlamaForCausalLMEagle3"],
            "draft_vocab_size": len(kept),
            "target_hidden_size": config.hidden_size,
        }
        write_whole(directory / "config.json", json.dumps(settings, indent=2) + "\n")


def begin(network: Network, token_ids: Sequence[int], intermediate_size: int | None) -> Head:
    """Return a head that begins as the target's last layer without biases, and reads the last states.

    Args:
        network: The target.
        token_ids: Tokens that the head proposes.
        intermediate_size: Neurons of the MLP, the first ones of the target's; None for all.
    """
    config, kept = network.config, np.sort(np.array(token_ids, np.int64))
    layer = network.layer(config.num_hidden_layers - 1)
    qkv = np.concatenate([part.to_float32() for part in layer.qkv])
    kv_size = config.num_key_value_heads * config.head_size
    same = np.eye(config.hidden_size, dtype=np.float32)
    weights = {
        "fc": np.concatenate([0 * same, 0 * same, same], 1),
        f"{_LAYER}input_layernorm": np.ones_like(network.final_norm),
        f"{_LAYER}hidden_norm": layer.input_norm,
        f"{_ATTENTION}o_proj": layer.dense.to_float32(),
        f"{_LAYER}post_attention_layernorm": layer.post_norm,
        f"{_MLP}gate_proj": layer.fc.to_float32()[:intermediate_size],
        f"{_MLP}up_proj": layer.gate.to_float32()[:intermediate_size],
        f"{_MLP}down_proj": layer.proj.to_float32()[:, :intermediate_size],
        "norm": network.final_norm,
        "lm_head": network.lm_head.rows(kept).to_float32(),
    }
    for name, part in zip("qkv", np.split(qkv, [-2 * kv_size, -kv_size]), strict=True):
        weights[f"{_ATTENTION}{name}_proj"] = np.concatenate([0 * part, part], 1)
    made = {f"{name}.weight": torch.from_numpy(np.array(values)) for name, values in weights.items()}
    return Head(config, network.embedding, made, torch.from_numpy(kept))
