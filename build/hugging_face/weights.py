"""Find the files of a checkpoint's weights, and their tensors under the names of transformers."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from build.checkpoints.settings import Settings, read_json
from build.checkpoints.tensor_file import FLOATS, Tensor, read_tensors
from build.checkpoints.tensorrt_llm import WEIGHTS as RANK
from build.checkpoints.tensorrt_llm import translated_name
from build.gguf.file import open_gguf
from build.gguf.network import tensors_of
from pipelines.errors import CheckpointError

GGUF_LINK = "gguf-weights"
"""Begin of the names of the links to a GGUF file, or its parts, in the directory that stands for it."""

_INDEX, _WHOLE = "model.safetensors.index.json", "model.safetensors"
_PICKLES = (".bin", ".pt", ".pth")
# Buffers of old versions of transformers, which are computed and not stored today; scales of a cache that is
# quantized, and of ModelOpt's integers for kernels that fold them into FP8.
_IGNORED = (".rotary_emb.inv_freq", "_cache_scaling_factor", ".weights_scaling_factor_2")


def weight_files(directory: Path) -> tuple[Path, ...]:
    """Return the safetensors files of a checkpoint, or the parts of its GGUF file.

    Raises:
        CheckpointError: One is missing, or the weights are pickles.
    """
    names = [path.name for path in directory.iterdir()]
    if parts := sorted(name for name in names if name.startswith(GGUF_LINK)):
        return tuple(directory / name for name in parts)
    return tuple(directory / name for name in weight_names(directory, str(directory), names))


def weight_names(directory: Path, where: str, present: Collection[str]) -> tuple[str, ...]:
    """Return the names of a checkpoint's safetensors files.

    Args:
        directory: Directory with the index, if the checkpoint has one.
        where: The checkpoint, for error messages.
        present: Names of all its files, which may be elsewhere.

    Raises:
        CheckpointError: One is missing, or the weights are pickles.
    """
    if _INDEX in present:
        return _indexed(directory / _INDEX, where, present)
    for whole in (_WHOLE, RANK):
        if whole in present:
            return (whole,)
    pickles = sorted(name for name in present if name.endswith(_PICKLES))
    if pickles:
        raise CheckpointError(
            f"{where} has its weights in pickles, which can run code when they are read: "
            f"{', '.join(pickles[:3])}",
            "use a revision with safetensors, or convert it with transformers' save_pretrained",
        )
    shards = sorted(name for name in present if name.endswith(".safetensors"))
    raise CheckpointError(
        f"{where} is not complete: {', '.join(shards[:3]) or 'no safetensors'}, and neither {_WHOLE} nor "
        f"{_INDEX}",
        "download the checkpoint again, or use another",
    )


def _indexed(index: Path, where: str, present: Collection[str]) -> tuple[str, ...]:
    settings = Settings(read_json(index), index)
    listed = settings.part("weight_map")
    files = () if listed is None else listed.values.values()
    if not files or not all(isinstance(name, str) for name in files):
        raise settings.fail("weight_map names no files", "download it again")
    names = sorted({Path(name).name for name in files})
    missing = [name for name in names if name not in present]
    if missing:
        raise CheckpointError(
            f"{where} is not complete: missing {', '.join(missing[:3])}"
            + (f" and {len(missing) - 3} more" * (len(missing) > 3))
            + f" of {len(names)} files that {index.name} lists",
            "download the checkpoint again, or use another",
        )
    return tuple(names)


class Weights:
    """The tensors of a checkpoint by name, memory-mapped; those of a GGUF file are read when they are used.

    Args:
        directory: Directory with ``model.safetensors``, shards and their index, a file of TensorRT-LLM, or
            links to a GGUF file.

    Raises:
        CheckpointError: A file is missing or damaged, or a shard lacks a tensor.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._tensors: dict[str, Tensor] = {}
        files = weight_files(directory)
        if files[0].name.startswith(GGUF_LINK):
            self._tensors = tensors_of(open_gguf(files[0]))
        elif files[0].name == RANK:
            stored = read_tensors(files[0])
            self._tensors = {translated_name(name): tensor for name, tensor in stored.items()}
            if len(self._tensors) < len(stored):
                raise self.fail("a tensor is there under two names")
        else:
            for shard in files:
                self._tensors.update(read_tensors(shard))
        self._unread = set(self._tensors)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def has_any(self, prefix: str) -> bool:
        """Return whether there is a tensor whose name begins like this."""
        return any(name.startswith(prefix) for name in self._tensors)

    def has_floats(self, name: str) -> bool:
        """Return whether there is a tensor of this name, in floating point of at least 16 bits."""
        tensor = self._tensors.get(name)
        return tensor is not None and tensor.dtype in FLOATS

    def take(self, name: str, *shapes: tuple[int, ...], dtypes: tuple[str, ...] = FLOATS) -> Tensor:
        """Return a tensor, after checking its shape.

        Args:
            name: Its name.
            *shapes: Shapes that it may have.
            dtypes: Types that it may have.

        Raises:
            CheckpointError: It is missing, or has another shape or an unsupported type.
        """
        tensor = self._tensors.get(name)
        wanted = " or ".join(str(list(shape)) for shape in shapes)
        if tensor is None:
            raise self.fail(f"missing {name}, of shape {wanted}")
        if tensor.shape not in shapes or tensor.dtype not in dtypes:
            found = f"{name} is {tensor.dtype} {list(tensor.shape)}"
            raise self.fail(f"{found}, not {' or '.join(dtypes)} {wanted}")
        self._unread.discard(name)
        return tensor

    def check_all_read(self, other_parts: tuple[str, ...]) -> None:
        """Check that every tensor was used: an unused one means a feature that was not computed.

        Raises:
            CheckpointError: A tensor was not used.
        """
        left = sorted(
            name
            for name in self._unread
            if not set(name.split(".")) & set(other_parts) and not name.endswith(_IGNORED)
        )
        if left:
            more = f" and {len(left) - 4} more" if len(left) > 4 else ""
            raise self.fail(f"not asked for: {', '.join(left[:4])}{more}")

    def fail(self, what: str) -> CheckpointError:
        """Return the error that refuses the weights."""
        return CheckpointError(
            f"the weights in {self._directory} do not fit its config.json: {what}",
            "download the checkpoint again; a whole one needs a feature that is not implemented",
        )
