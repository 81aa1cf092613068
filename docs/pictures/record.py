"""Records one real stream of each model for README's picture: ``python -m docs.pictures.record --url URL``.

The last line of standard output is JSON: for each model its pieces of text, when they arrived, and which
of them were accepted draft tokens. ``docs.pictures.stream`` draws it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines.bench.reporting.conditions import conditions
from pipelines.client import Client, CompletionRequest
from pipelines.client.connection import SPECULATIVE, TARGET_ALONE
from pipelines.command_line.live_text import Segmenter
from pipelines.command_line.prompt_files import read_prompts
from pipelines.text.vocabulary import Vocabulary

_TOKENIZER = Path("engines/demo_pair/target/tokenizer.json")
_PROMPTS = Path("engines/demo_pair/prompts/code.jsonl")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m docs.pictures.record", description="Record a stream.")
    parser.add_argument("--url", required=True, help="gRPC address of a server of recipe demo")
    parser.add_argument("--prompt", type=int, default=0, help="index of the held-out prompt")
    parser.add_argument("--max-tokens", type=int, default=96)
    options = parser.parse_args(arguments)
    prompt = read_prompts(_PROMPTS).all[options.prompt]
    request = CompletionRequest(prompt.text, max_tokens=options.max_tokens)
    with Client.connect(options.url) as client:
        for model in (TARGET_ALONE, SPECULATIVE):  # both have computed the prompt once before they are timed
            client.generate(request, model)
        streams = {model: _record(client, request, model) for model in (TARGET_ALONE, SPECULATIVE)}
        about = conditions(
            "docs.pictures.record",
            sys.argv[1:] if arguments is None else arguments,
            recipe="demo",
            triton_version=client.server_version(),
            engines={},
            max_tokens=options.max_tokens,
        )
    print(json.dumps({"prompt": prompt.text, "streams": streams, "conditions": about}))
    return 0


def _record(client: Client, request: CompletionRequest, model: str) -> dict[str, Any]:
    segmenter = Segmenter(Vocabulary.from_file(_TOKENIZER))
    began_s = time.monotonic()
    pieces = []
    with client.stream(request, model) as stream:
        for chunk in stream:
            at_s = round(chunk.received_at_s - began_s, 4)
            if not chunk.accepted_mask:  # generate_target has no draft
                pieces.append({"at_s": at_s, "text": chunk.text, "is_accepted": False})
                continue
            pieces += [
                {"at_s": at_s, "text": part.text, "is_accepted": part.is_accepted}
                for part in segmenter.segments(chunk)
            ]
        whole = stream.result()
    return {
        "pieces": [piece for piece in pieces if piece["text"]],
        "num_tokens": len(whole.output_ids),
        "num_accepted": whole.total_accepted_draft_tokens,
        "output_ids": whole.output_ids,
        "e2e_latency_s": round(whole.e2e_latency_s, 4),
    }


if __name__ == "__main__":
    sys.exit(main())
