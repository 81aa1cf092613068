"""Writes the pair's README from its evaluation, so that no figure in it can drift from what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_TEXT = """# The demonstration pair

Two small Llama models, trained from nothing by `build/demo_pair/`: a **target** (8 layers, 6.8 M parameters) and a
**draft** (2 layers, 2.1 M). They write text that looks like Python and means nothing; they exist so that the whole road,
from checkpoint to a measured speed-up, can be walked without a model hub. This file is written by
`build/demo_pair/readme.py` from `evaluation.json`; do not edit it.

**The pair is tuned for agreement.** In the second half of the training the *target* too is pulled towards what its draft
predicts, which costs it some quality and makes acceptance much higher than two independently trained models of these
sizes would reach. Acceptance of your own pair will differ; measure it.

| | target | draft |
|---|---|---|
| layers; hidden size; feed-forward | 8; 256; 768 | 2; 256; 768 |
| query heads; key and value heads; head size | 4; 2; 64 | 4; 2; 64 |
| held-out loss, nats per token (bits per byte) | {target_loss} | {draft_loss} |

Vocabulary 2,048 (byte-level BPE, the same file for both), tied embeddings, bfloat16, `<|endoftext|>` = id 2047 ends a text,
no token is put before a prompt. Trained on 512 positions; beyond them the models are out of their depth.

## Acceptance

Draft tokens that the target accepted, of all that were proposed, on {prompts} held-out prompts of {prompt_tokens} tokens, with
{new_tokens} new tokens each; in brackets the mean number of tokens one pass of the target gave.

| `num_draft_tokens` | greedy | greedy, outputs without a loop ({greedy_clean}) | temperature {temperature} | temperature {temperature}, without a loop ({sampled_clean}) |
|---|---|---|---|---|
{table}

- Sampling shares Gumbel noise between target and draft, as the server does. With independent draws acceptance would be far lower.
- Small models repeat themselves: {greedy_loops} of the greedy tokens and {sampled_loops} of the sampled ones lie in an exact repetition
  (at least 3 periods and 12 tokens, the first period not counted). Hence the columns without loops.
- Token agreement outside loops: {greedy_agreement} greedy, {sampled_agreement} at temperature {temperature}.
- Conditions: Python {python}, torch {torch}, {processor}, {threads} threads, training seed {seed}, {steps} steps
  ({tokens} tokens of text) and the distillation of the draft, {minutes} minutes; corpus `{corpus}`; {date}. {note}

## How it was trained

```
make train-demo        # or: python -m build.demo_pair.train --output engines/demo_pair
python -m build.demo_pair.evaluate engines/demo_pair
```

1. *Text alone.* One network, the draft being an early exit after two layers: cross-entropy of both.
2. *Towards each other.* The same run, from 45 % of the steps on: KL(target || draft) is added, with gradients to both.
3. *The draft alone.* The target is frozen and rounded; the draft learns from its distribution, on the corpus and on text
   the target wrote itself (greedy and sampled).

Seed and number of steps fix the run up to the rounding of the machine's kernels. `--scale 0.02` trains a pair in about
two minutes that is good for plumbing only.

## Text and licence

The text is the source of the Python standard library of the interpreter that trains (Python Software Foundation License
Version 2, https://docs.python.org/3/license.html), with part of its test suite. {held_out} modules, and the tests of those modules, were
held out; `prompts/heldout.jsonl` is cut from them. The prompts from held-out modules are excerpts under that licence.

| file in `prompts/` | prompts |
|---|---|
| `heldout.jsonl` | 64 tokens each, cut at random places of held-out modules |
| `mixed.jsonl` | held-out code, prose of docstrings, licence wording, very short pieces |
| `adversarial.jsonl` | outside the domain: random words, base64, digits, other scripts, punctuation, white space |
| `repetitive.jsonl` | tables, lists and stanzas whose continuation repeats the prompt |
"""


def _cell(figures: dict[str, Any] | None) -> str:
    if figures is None:
        return "-"
    return f"{figures['acceptance_rate']:.2f} ({figures['mean_acceptance_length']:.2f})"


def _table(evaluation: dict[str, Any]) -> str:
    columns = [
        evaluation[mode].get(part, {})
        for mode in ("greedy", "sampled")
        for part in ("all_outputs", "outputs_without_loop_only")
    ]
    counts = list(evaluation["greedy"]["all_outputs"])
    return "\n".join(
        f"| {count} | " + " | ".join(_cell(column.get(count)) for column in columns) + " |" for count in counts
    )


def render_readme(evaluation: dict[str, Any]) -> str:
    """Returns the README's text for the document that ``evaluation.json`` holds."""
    conditions, training = evaluation["conditions"], evaluation["conditions"]["training"]
    losses = evaluation["validation_loss_nats_per_token"]
    per_byte = {name: loss / 0.6931472 / evaluation["bytes_per_token"] for name, loss in losses.items()}
    greedy, sampled = evaluation["greedy"], evaluation["sampled"]
    return _TEXT.format(
        target_loss=f"{losses['target']:.2f} ({per_byte['target']:.2f})",
        draft_loss=f"{losses['draft']:.2f} ({per_byte['draft']:.2f})",
        prompts=conditions["prompts"],
        prompt_tokens=conditions["prompt_tokens"],
        new_tokens=conditions["new_tokens"],
        temperature=conditions["temperature_of_sampled"],
        greedy_clean=greedy["outputs_without_loop"],
        sampled_clean=sampled["outputs_without_loop"],
        table=_table(evaluation),
        greedy_loops=f"{greedy['loop_share_of_tokens']:.0%}",
        sampled_loops=f"{sampled['loop_share_of_tokens']:.0%}",
        greedy_agreement=f"{greedy['token_agreement_outside_loops']:.2f}",
        sampled_agreement=f"{sampled['token_agreement_outside_loops']:.2f}",
        python=conditions["python"],
        torch=conditions["torch"],
        processor=conditions["processor"],
        threads=training["threads"],
        seed=training["seed"],
        steps=training["steps"],
        tokens=f"{training['target_tokens'] / 1e6:.1f} M",
        minutes=training["minutes"],
        corpus=conditions["corpus_sha256"][:12],
        date=conditions["date"][:10],
        note=conditions["note"],
        held_out=training.get("held_out_modules", 24),
    )


def write_readme(directory: Path) -> None:
    """Writes ``README.md`` next to ``evaluation.json`` in ``directory``."""
    evaluation = json.loads((directory / "evaluation.json").read_text(encoding="utf-8"))
    (directory / "README.md").write_text(render_readme(evaluation), encoding="utf-8")
