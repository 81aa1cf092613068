"""Answers ``GET /v1/models``."""

from __future__ import annotations

from typing import Any

from pipelines.front_door.requests.sampling import check_model
from pipelines.front_door.served_model import ServedModel


def list_models(model: ServedModel) -> dict[str, Any]:
    """Return the list with the one model that is served."""
    return {"object": "list", "data": [_document(model)]}


def describe_model(model: ServedModel, name: str) -> dict[str, Any]:
    """Return one model.

    Raises:
        ModelNotFoundError: It is not served.
    """
    check_model(name, model)
    return _document(model)


def _document(model: ServedModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created_s,
        "owned_by": "draftproof",
        "root": model.name,
        "parent": None,
        "max_model_len": model.max_seq_len,  # vLLM's name
        "system_fingerprint": model.fingerprint,
        "default_sampling_params": model.default_sampling,
        "chat": _chat(model),
    }


def _chat(model: ServedModel) -> dict[str, Any] | None:
    """Return what the model's chat template lets it do; None without a template."""
    if model.chat is None:
        return None
    style = model.style(with_tools=True)
    return {"tool_calls": style.calls.name if style.calls else None, "reasoning": style.can_think}
