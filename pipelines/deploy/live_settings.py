"""Settings that a running server follows: files of its run directory that it reads when they change."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from pipelines.atomic_file import whole_file, write_whole
from pipelines.deploy.triton.models import rendered_parameters
from pipelines.deploy.triton.pair_record import LOOP
from pipelines.errors import InvalidRequestError
from pipelines.manifest import EngineFiles
from pipelines.speculation.lookup.corpus import MAX_TOKENS, Corpus
from pipelines.speculation.token_ids import NO_TOKENS, TokenIds
from pipelines.text.prompt_tokenizer import PromptTokenizer

ADAPTIVE = "adaptive"
CORPUS_FILES = "lookup_corpus-*.npy"
"""Names of the files in a run directory: one for each tokenizer."""

_MAX_BYTES = 8 * MAX_TOKENS  # of a file; more than so many tokens have in any language
_PIECE = 1 << 20  # characters that are tokenized at once; the tokenizer needs much more memory than its text
_NUM_NAMED = 3  # files that a message names


def set_draft_length(run_directory: Path, wanted: str) -> Path:
    """Write the setting; it applies from the next request on, and after a restart.

    Args:
        run_directory: ``.run/<recipe>`` with its rendered repository.
        wanted: ``adaptive``, or a number of draft tokens; 0 switches speculation off.

    Returns:
        Path of the file.

    Raises:
        InvalidRequestError: The value is invalid, or greater than ``max_draft_len``.
        RepositoryError: There is no rendered repository.
    """
    limit = int(rendered_parameters(run_directory, LOOP)["max_draft_len"])
    if wanted not in (ADAPTIVE, *map(str, range(limit + 1))):
        raise InvalidRequestError(
            "the draft length is invalid",
            values=f"num_draft_tokens={wanted!r}",
            limit=f"'{ADAPTIVE}', or 0 to max_draft_len={limit}",
            remedy="use one of these; 0 switches speculation off",
        )
    path = run_directory / "draft_length.json"
    document = {"num_draft_tokens": None if wanted == ADAPTIVE else int(wanted)}
    write_whole(path, json.dumps(document) + "\n")
    return path


def set_lookup_corpus(run_directory: Path, paths: Sequence[Path], report: Callable[[str], None]) -> None:
    """Read texts, tokenize and index them; a server reads the result at its next request, or when it starts.

    Args:
        run_directory: ``.run/<recipe>`` with its rendered repository.
        paths: Text files, and folders with such files at any depth. Of ``*.jsonl``, the ``text`` of each line
            is a text, of other files the whole content. None removes the corpus.
        report: Called with a line about what was read, and about files that were left out.

    Raises:
        InvalidRequestError: There is no text, too much of it, or the runtime looks nothing up.
        RepositoryError: There is no rendered repository.
        EngineLoadError: The target's tokenizer cannot be read.
    """
    if not paths:
        for path in run_directory.glob(CORPUS_FILES):  # also of earlier tokenizers
            path.unlink()
        report("there is no corpus now")
        return
    parameters = rendered_parameters(run_directory, LOOP)
    if "lookup_corpus_file" not in parameters:
        raise InvalidRequestError(
            "this server looks no drafts up",
            values=f"engine_access={parameters.get('engine_access')} in {run_directory}",
            limit="engine_access=in_process, of the embedded runtime",
            remedy="serve the recipe with --runtime embedded; if it is, run 'draftproof repository' again",
        )
    destination = run_directory / Path(parameters["lookup_corpus_file"]).name
    files = list(_files(paths))
    engine = EngineFiles(Path(parameters["target_engine_dir"]), parameters["target_engine_digest"])
    tokenizer = PromptTokenizer(engine.read("tokenizer.json"), engine.path("tokenizer.json"))
    left_out: list[str] = []
    corpus = Corpus.of(_tokens(files, tokenizer, left_out))
    if left_out:
        more = f" and {len(left_out) - _NUM_NAMED} more" if len(left_out) > _NUM_NAMED else ""
        report(f"left out, as they are no UTF-8 text: {', '.join(left_out[:_NUM_NAMED])}{more}")
    if not corpus.num_tokens:
        raise InvalidRequestError(
            "there is no text for a corpus",
            values=f"{', '.join(map(str, paths))}: {len(files)} files, 0 tokens",
            limit="at least one file with text in UTF-8",
            remedy="name other files, or none to remove the corpus",
        )
    try:
        with whole_file(destination) as made:
            corpus.write(made)
            made.chmod(0o600)
    except OSError as error:
        raise InvalidRequestError(
            "the corpus cannot be written",
            values=f"{destination}: {error.strerror}",
            limit="the run directory of this user's server, with room for 8 bytes for each token",
            remedy="run the command as the user of the server, or free space",
        ) from error
    report(f"{len(files) - len(left_out)} files, {corpus.num_tokens:,} tokens: {destination}")


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in inside:
            is_hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
            if file == path or (file.is_file() and not is_hidden):
                yield file


def _tokens(files: Sequence[Path], tokenizer: PromptTokenizer, left_out: list[str]) -> Iterator[TokenIds]:
    for file in files:
        try:
            if file.stat().st_size > _MAX_BYTES:
                raise ValueError(f"it has {file.stat().st_size:,} bytes")
            content = file.read_text(encoding="utf-8-sig")
            for text in _texts_of_lines(content) if file.suffix == ".jsonl" else [content]:
                yield _encode(text, tokenizer)
        except UnicodeDecodeError:
            left_out.append(file.name)
        except (OSError, ValueError, InvalidRequestError) as error:
            raise InvalidRequestError(
                "a file of the corpus cannot be read",
                values=f"{file}: {error}",
                limit=f"text, at most {_MAX_BYTES:,} bytes; in *.jsonl, each line a JSON object with a text",
                remedy="correct the file or its path, or leave it out",
            ) from error


def _texts_of_lines(content: str) -> Iterator[str]:
    for number, line in enumerate(content.split("\n"), start=1):
        if line.strip():
            try:
                text = json.loads(line)["text"]
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise ValueError(f"line {number}: {error!r}") from error
            if not isinstance(text, str):
                raise ValueError(f"line {number}: text={text!r:.40}")
            yield text


def _encode(text: str, tokenizer: PromptTokenizer) -> TokenIds:
    pieces, begin = [NO_TOKENS], 0
    while begin < len(text):
        end = text.rfind("\n", begin, begin + _PIECE) + 1 or begin + _PIECE
        if begin + _PIECE >= len(text):
            end = len(text)
        pieces.append(np.array(tokenizer.encode(text[begin:end], add_special_tokens=False), np.int32))
        begin = end
    return np.concatenate(pieces)
