"""Map the tensors of a Hugging Face checkpoint into memory."""

from __future__ import annotations

from pathlib import Path

from build.checkpoints.tensor_file import Tensor, read_tensors
from build.hugging_face.weight_files import weight_files
from pipelines.errors import CheckpointError

FLOATS = ("BF16", "F16", "F32")
# Buffers of old versions of transformers, which are computed and not stored today.
_IGNORED = (".rotary_emb.inv_freq",)


class Weights:
    """The tensors of a checkpoint by name, memory-mapped.

    Args:
        directory: Directory with ``model.safetensors``, or shards and their index.

    Raises:
        CheckpointError: A file is missing or damaged, or a shard lacks a tensor.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._tensors: dict[str, Tensor] = {}
        for shard in weight_files(directory):
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
            raise self.fail(f"missing {name}", f"config.json asks for it, of shape {wanted}")
        if tensor.shape not in shapes or tensor.dtype not in dtypes:
            raise self.fail(
                f"{name} is {tensor.dtype} {list(tensor.shape)}", f"{' or '.join(dtypes)} {wanted}"
            )
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
            raise self.fail(
                f"not used: {', '.join(left[:4])}{more}", "only tensors that config.json asks for"
            )

    def fail(self, values: str, limit: str) -> CheckpointError:
        """Return the error that refuses the weights."""
        return CheckpointError(
            f"the weights in {self._directory} do not fit its config.json",
            values=values,
            limit=limit,
            remedy="download the checkpoint again; a whole one needs a feature that is not implemented",
        )
