"""Convert the demonstration pair to Hugging Face checkpoints, which other engines load."""

from __future__ import annotations

import json
from pathlib import Path

from build.checkpoints.checkpoint import network_from_checkpoint, read_checkpoint
from build.hugging_face.write import write_hugging_face
from build.networks.weight_only import apply_quantization
from pipelines.manifest import sha256_file, sha256_json

_END = 2047  # the tokenizer's only special token
_DIGEST_LENGTH = 12
_TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"


def folder_for(pair: Path, run: Path) -> Path:
    """Return the folder of the files that are made of a pair; another pair has another one."""
    files = sorted(each for role in ("draft", "target") for each in (pair / role).iterdir())
    digest = sha256_json({f"{each.parent.name}/{each.name}": sha256_file(each) for each in files})
    folder = run / digest[:_DIGEST_LENGTH]
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def checkpoint(folder: Path, pair: Path, role: str, quantization: str) -> Path:
    """Return the checkpoint of a role, converted the first time; it answers conversations too.

    Args:
        folder: Where it lies.
        pair: Folder of the demonstration pair.
        role: "draft" or "target".
        quantization: Form of its projections, named as in recipes.
    """
    directory = folder / f"{role}-{quantization}"
    if not (directory / "config.json").is_file():
        network = network_from_checkpoint(read_checkpoint(pair / role))
        weights = apply_quantization(network, quantization, "checkpoint")
        made = folder / f"{directory.name}.part"
        write_hugging_face(made, weights, pair / "target" / "tokenizer.json", [_END])
        path = made / "tokenizer_config.json"
        document = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(
            json.dumps({**document, "chat_template": _TEMPLATE}, indent=2) + "\n", encoding="utf-8"
        )
        made.rename(directory)
    return directory
