"""The table of ``benchmarks.families``."""

from __future__ import annotations

import math

from docs.figures.words import Document, conditions

_NAMES = {
    "llama": "Llama 2, 3, 3.1, 3.2, 3.3; SmolLM2",
    "llama-biases": "Llama with biases",
    "mistral": "Mistral, with and without windows",
    "qwen2": "Qwen2, Qwen2.5",
    "qwen2-windows": "Qwen2 with windows",
    "qwen3": "Qwen3, dense",
    "qwen3-yarn": "Qwen3 with YaRN (Qwen2.5 too)",
    "smollm3": "SmolLM3",
    "phi3": "Phi-3 with windows",
    "phi3-mini4": "Phi-4-mini, up to its original 4,096 tokens",
    "phi3-longrope": "Phi-4-mini, Phi-3 with 128k: beyond the original context",
    "phi3-heads96": "Phi-3-mini: heads of 96",
    "gemma2": "Gemma 2, with attention of our own",
    "gemma2-heads256": "Gemma 2: heads of 256, with attention of our own",
    "gemma3_text": "Gemma 3, text",
    "gemma3_text-heads256": "Gemma 3: heads of 256",
    "granite": "Granite 3",
    "olmo2": "OLMo 2",
}


def families(document: Document) -> str:
    """Return one line for each network."""
    lines = [
        "| Family | Float32: largest difference of a logit | Greedy tokens equal | Chat | "
        "INT8: KL, same argmax, perplexity | INT4: KL, same argmax, perplexity | Rows whose bits differ |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, family in document["families"].items():
        cells = [
            _NAMES[name],
            f"{family['largest_error']:.1e}",
            f"{family['num_greedy_equal']} of {document['num_greedy']}",
            _chat(family["chat"]),
            *(_divergence(family[quantization]["divergence"]) for quantization in ("int8", "int4")),
            str(sum(part["num_rows_differing"] for part in (family, family["int8"], family["int4"]))),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", conditions(document["conditions"])])


def _chat(chat: Document | None) -> str:
    if chat is None:
        return "not compared"
    return f"`{chat['template']}`: {chat['num_equal']} of {chat['num_rendered']}, answered"


def _divergence(found: Document) -> str:
    ratio = math.exp(found["lost_nats"])
    return f"{max(found['kl'], 0.0):.1e}, {found['same_argmax']:.1%}, x {ratio:.3f}"
