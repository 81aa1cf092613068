"""Translate a GGUF file into a directory in the form of transformers, from which engines are compiled.

The directory has settings, the tokenizer and links to all parts of the file: weights are read where they
are. It is made once for each version of the file.
"""

from __future__ import annotations

import glob
import json
from pathlib import Path

from build.files import exclusive
from build.gguf.file import open_gguf, part_paths
from build.gguf.network import config_of, type_counts
from build.gguf.tokenizer import tokenizer_of
from build.hugging_face.weights import GGUF_LINK
from pipelines.atomic_file import remove_directory, version_of, whole_directory
from pipelines.manifest import sha256_file, sha256_json

_SOURCES = sorted(Path(__file__).parent.glob("*.py"))


def translate(path: Path, cache: Path) -> Path:
    """Translate a file unless that was done before, and print a line about it.

    Args:
        path: The file, or any part of a split one.
        cache: Folder of all such directories.

    Returns:
        The directory.

    Raises:
        CheckpointError: The file cannot be read, or needs a feature that is not implemented.
    """
    paths = part_paths(path.absolute())
    # What changes with the files, or with the code that translates them.
    version = sha256_json([*map(version_of, paths), *map(sha256_file, _SOURCES)])[:16]
    name = f"{paths[0].stem}-{sha256_json(str(paths[0]))[:8]}"
    directory = cache / f"{name}-{version}"
    if directory.is_dir():
        return directory
    with exclusive(cache):
        if directory.is_dir():  # another process has made it meanwhile
            return directory
        file = open_gguf(paths[0])
        config, tokenizer = config_of(file), tokenizer_of(file)
        documents = {
            "config.json": json.dumps(config),
            "generation_config.json": json.dumps({"eos_token_id": tokenizer.end_ids}),
            "tokenizer.json": tokenizer.tokenizer.to_str(),
            "tokenizer_config.json": json.dumps(tokenizer.settings),
        }
        kinds = (f"{kind} {count / 1e6:.1f} million" for kind, count in type_counts(file).most_common())
        print(f"{path.name}: {file.architecture}, weights by type: {', '.join(kinds)}", flush=True)
        with whole_directory(directory) as made:
            for document, text in documents.items():
                (made / document).write_text(text, encoding="utf-8")
            for number, part in enumerate(paths, 1):
                (made / f"{GGUF_LINK}-{number:05}-of-{len(paths):05}.gguf").symlink_to(part)
        for older in cache.glob(f"{glob.escape(name)}-*"):
            if older != directory:
                remove_directory(older)
    return directory
