"""Unpack a GGUF file into a directory in the form of transformers, from which engines are compiled.

This is done once for each version of the file. Quantized projections keep the blocks of the file
(``hugging_face.quantized.gguf``), so nothing is rounded before the engine's own quantization.
"""

from __future__ import annotations

import glob
import json
import math
from pathlib import Path

from build.checkpoints.tensor_file import STORAGE, write_tensors
from build.files import Need, check_space, exclusive
from build.gguf.file import GgufFile, changed, open_gguf, part_paths
from build.gguf.network import config_of, tensors_of, type_counts
from build.gguf.tokenizer import tokenizer_of
from pipelines.atomic_file import remove_directory, whole_directory
from pipelines.manifest import sha256_file, sha256_json

_SOURCES = sorted(Path(__file__).parent.glob("*.py"))


def unpack(path: Path, cache: Path) -> Path:
    """Unpack a file unless that was done before, and print a line about it.

    Args:
        path: The file, or any part of a split one.
        cache: Folder of all such directories.

    Returns:
        The directory.

    Raises:
        CheckpointError: The file cannot be read, changed meanwhile, or needs a feature that is not
            implemented.
        RecipeError: The disk does not hold it.
    """
    paths = part_paths(path.absolute())
    version = _version(paths)
    name = f"{paths[0].stem}-{sha256_json(str(paths[0]))[:8]}"
    directory = cache / f"{name}-{version}"
    if directory.is_dir():
        return directory
    with exclusive(cache):
        if directory.is_dir():  # another process has unpacked it meanwhile
            return directory
        file = open_gguf(path.absolute())
        documents, tensors = _documents(file), tensors_of(file)
        print(f"{path.name}: unpacking {file.architecture}, {_summary(file)}", flush=True)
        size = sum(STORAGE[each.dtype].itemsize * math.prod(each.shape) for each in tensors.values())
        check_space([Need(str(path), cache, size, "DRAFTPROOF_CACHE")])
        with whole_directory(directory) as made:
            for document, text in documents.items():
                (made / document).write_text(text, encoding="utf-8")
            write_tensors(made / "model.safetensors", tensors)
            if _version(paths) != version:
                raise changed(file.path)
        for older in cache.glob(f"{glob.escape(name)}-*"):
            if older != directory:
                remove_directory(older)
    return directory


def _version(paths: list[Path]) -> str:
    """Return what changes with the files, or with the code that unpacks them."""
    states = [path.stat() for path in paths]
    seen = [[each.st_size, each.st_mtime_ns, each.st_ctime_ns, each.st_ino] for each in states]
    return sha256_json([seen, [sha256_file(source) for source in _SOURCES]])[:16]


def _summary(file: GgufFile) -> str:
    kinds = (f"{kind} {count / 1e6:.1f} million" for kind, count in type_counts(file).most_common())
    return f"weights by type: {', '.join(kinds)}"


def _documents(file: GgufFile) -> dict[str, str]:
    """Return the content of the JSON files by name."""
    config, tokenizer = config_of(file), tokenizer_of(file)
    return {
        "config.json": json.dumps(config),
        "generation_config.json": json.dumps({"eos_token_id": tokenizer.end_ids}),
        "tokenizer.json": tokenizer.tokenizer.to_str(),
        "tokenizer_config.json": json.dumps(tokenizer.settings),
    }
