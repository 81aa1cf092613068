"""Name the images of servers by a hash of what they are made of, so that an image never changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from build.recipe import REPOSITORY_ROOT
from pipelines.manifest import sha256_file, sha256_json

CODE = "/opt/draftproof/code"
"""Path of the code in the image, as in ``pipelines/deploy/Dockerfile``."""

_ENVIRONMENT = ("pipelines/deploy/Dockerfile", "requirements/run.txt")
_CODE = ("build", "model_repository", "pipelines")  # folders that the image holds


def environment_image(runtime: str, container: str) -> str:
    """Return the name of the image with Python's packages, for servers that mount the checkout.

    Args:
        runtime: ``embedded`` or ``tensorrt_llm``.
        container: Base image.
    """
    return _named(f"{runtime}-environment", {"container": container, **_digests(_environment())})


def server_image(runtime: str, container: str, target: str) -> str:
    """Return the name of the image with packages and code.

    Args:
        runtime: ``embedded`` or ``tensorrt_llm``.
        container: Base image.
        target: Stage of the Dockerfile, ``server`` or ``node``.
    """
    content = {"container": container, "target": target, **_digests(_environment()), **_digests(_code())}
    return _named(runtime, content)


def _named(kind: str, content: dict[str, str]) -> str:
    return f"draftproof-{kind.replace('_', '-')}:{sha256_json(content)[:12]}"


def _digests(paths: Iterator[Path]) -> dict[str, str]:
    return {path.relative_to(REPOSITORY_ROOT).as_posix(): sha256_file(path) for path in paths}


def _environment() -> Iterator[Path]:
    return (REPOSITORY_ROOT / name for name in _ENVIRONMENT)


def _code() -> Iterator[Path]:
    for folder in _CODE:
        files = (path for path in (REPOSITORY_ROOT / folder).rglob("*") if path.is_file())
        yield from sorted(path for path in files if "__pycache__" not in path.parts)
