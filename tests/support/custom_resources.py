"""Checks objects that Kubernetes does not know itself against the schemas that their projects publish.

No package has those schemas (CustomResourceDefinitions). ``DRAFTPROOF_CRDS=FOLDER`` names a folder with their
YAML files: config/crd/full of KServe, manifests/crds of Argo Rollouts, artifacts/flagger/crd.yaml.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

Schema = Mapping[str, Any]


def problems(document: Mapping[str, Any]) -> list[str]:
    """Return what its project's schema does not allow in an object; skip the test without the schemas."""
    if "DRAFTPROOF_CRDS" not in os.environ:
        pytest.skip("DRAFTPROOF_CRDS names no folder of published schemas")
    schema = _published()[document["apiVersion"], document["kind"]]
    errors = jsonschema.Draft202012Validator(schema).iter_errors(document["spec"])
    return [f"{error.json_path}: {error.message[:200]}" for error in errors]


@functools.cache
def _published() -> dict[tuple[str, str], Schema]:
    """Return the schemas of ``spec`` in the folder that ``DRAFTPROOF_CRDS`` names."""
    found = {}
    for path in Path(os.environ["DRAFTPROOF_CRDS"]).rglob("*.yaml"):
        for each in yaml.load_all(path.read_text(encoding="utf-8"), yaml.CSafeLoader):
            if each and each.get("kind") == "CustomResourceDefinition":
                group, kind = each["spec"]["group"], each["spec"]["names"]["kind"]
                for version in each["spec"]["versions"]:
                    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
                    found[f"{group}/{version['name']}", kind] = _strict(spec)
    return found


def _strict(schema: Any) -> Any:
    """Return a schema of Kubernetes' kind as JSON Schema that refuses what Kubernetes would drop."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: _strict(value) for key, value in schema.items() if key != "properties"}
    if schema.get("x-kubernetes-int-or-string"):
        result["type"] = ["integer", "string"]
    if "properties" in schema:
        result["properties"] = {name: _strict(value) for name, value in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            result.setdefault("additionalProperties", False)
    return result
