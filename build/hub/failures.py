"""Turn what goes wrong between this machine and the hub into errors that say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from huggingface_hub import constants, get_token
from huggingface_hub.errors import (
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from build.hub.checkpoint_id import HubCheckpoint
from pipelines.errors import CheckpointError


@contextmanager
def explained(checkpoint: HubCheckpoint) -> Iterator[None]:
    """Raise errors of the hub, and of the way to it, as ``CheckpointError``.

    Messages of the library are not passed on: their addresses can hold signatures, and a header the token.
    """
    try:
        yield
    except (UnicodeEncodeError, httpx.LocalProtocolError):  # every name has been checked
        raise CheckpointError(
            f"the token for {checkpoint.repo} is malformed: it has control characters, or others than ASCII",
            "correct HF_TOKEN, or unset it for a public repository",
        ) from None
    except (HfHubHTTPError, httpx.HTTPError, OfflineModeIsEnabled, LocalEntryNotFoundError) as error:
        raise _explanation(checkpoint, error) from error
    except (httpx.InvalidURL, UnicodeError, ImportError) as error:  # the last by a proxy that needs a package
        raise _unreadable(checkpoint.repo, type(error).__name__) from error


def _explanation(checkpoint: HubCheckpoint, error: Exception) -> CheckpointError:
    repo, page = checkpoint.repo, f"{constants.ENDPOINT}/{checkpoint.repo}"
    token = "a token is set" if get_token() else "no token is set"
    if isinstance(error, GatedRepoError):
        return CheckpointError(
            f"{repo} is gated, and {token}: its authors grant access to accounts that accept their terms",
            f"accept the terms on {page}, set HF_TOKEN to a token of that account, and run the command again",
        )
    if isinstance(error, DisabledRepoError):
        return CheckpointError(f"the hub has disabled {repo}", "use another repository")
    if isinstance(error, RepositoryNotFoundError):
        return CheckpointError(
            f"the hub has no repository {repo} that you may read; {token}",
            "correct the name of the repository, or of the directory if you meant one; for a private "
            "repository set HF_TOKEN to a token that may read it",
        )
    if isinstance(error, RevisionNotFoundError):
        return CheckpointError(
            f"{repo} has no revision {checkpoint.revision}",
            f"choose a branch, a tag or a commit on {page}/commits/main",
        )
    if constants.HF_HUB_OFFLINE:
        return CheckpointError(
            f"{checkpoint} is not on this machine: HF_HUB_OFFLINE is set, and {checkpoint.cache} lacks files "
            "of it",
            "unset HF_HUB_OFFLINE for one run, or point HF_HOME to the cache that has it",
        )
    root = _root(error)
    status = root.response.status_code if isinstance(root, httpx.HTTPStatusError) else None
    if status in (401, 403):
        return CheckpointError(
            f"the hub refuses access to {repo} with HTTP {status}, and {token}",
            "set HF_TOKEN to a token that may read it, or unset it for a public repository",
        )
    return _unreadable(repo, f"HTTP {status}" if status else type(root).__name__)


def _unreadable(repo: str, detail: str) -> CheckpointError:
    return CheckpointError(
        f"{repo} could not be read from the hub, {constants.ENDPOINT}: {detail}; what has been downloaded is "
        "kept",
        "check the network, HF_ENDPOINT and the proxy if used, and run the same command again",
    )


def _root(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error
