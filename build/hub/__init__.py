"""Download checkpoints from the Hugging Face hub into its cache on this machine."""

import importlib
import os

from pipelines.errors import CheckpointError

_CONSTANTS = "huggingface_hub.constants"  # the library reads its environment once, when this is imported

MALFORMED: CheckpointError | None = None
"""Error of the environment; opening a checkpoint on the hub raises it, others need no hub."""

try:
    importlib.import_module(_CONSTANTS)
except ValueError as error:
    MALFORMED = CheckpointError(
        "the environment of the Hugging Face hub is malformed",
        values=f"{error}; HF_ENDPOINT={os.environ.get('HF_ENDPOINT', '')}",
        limit="HF_ENDPOINT is the address of a mirror, such as https://hub.example.org; "
        "HF_HUB_ETAG_TIMEOUT and HF_HUB_DOWNLOAD_TIMEOUT are whole numbers",
        remedy="correct these variables, or unset them",
    )
    given = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("HF_")}
    importlib.import_module(_CONSTANTS)
    os.environ.update(given)
