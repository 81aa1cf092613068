"""Tests of servers that cannot be rolled out because they do not say what they serve."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.errors import CanaryError
from pipelines.upstreams.world import UpstreamWorld
from pipelines.validation.openai.server.endpoint import Endpoint
from tests.support.scripted_http import scripted_http


@pytest.mark.parametrize("listed", [b"[" * 100_000, b"{", b"[]", b'{"data": [1]}', b'{"data": null}'])
def test_a_list_of_models_that_is_none_is_told(listed: bytes, tmp_path: Path) -> None:
    with scripted_http((200, {}, listed)) as script:
        endpoints = {"old": Endpoint(script.url), "new": Endpoint(script.url)}
        with pytest.raises(CanaryError, match="is no list of models"):
            UpstreamWorld(tmp_path, endpoints, "old", "new").preflight()
