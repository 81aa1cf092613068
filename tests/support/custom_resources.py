"""Checks objects that Kubernetes does not know itself against the schemas that their projects publish.

No package has those schemas (CustomResourceDefinitions). Below are the fields that our examples use, as they
were read in KServe @aaac4e29, Argo Rollouts @9f8d111d and Flagger @15bd6ad5; another field is a problem. With
``DRAFTPROOF_CRDS=FOLDER``, the definitions in a folder's YAML files are asked as well: config/crd/full of
KServe, manifests/crds of Argo Rollouts, artifacts/flagger/crd.yaml. Pods inside the objects are checked where
Kubernetes' own schemas are.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import yaml

Schema = Mapping[str, Any]

_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_FLAG: Schema = {"type": "boolean"}
_ANYTHING: Schema = {"type": "object"}  # checked as a pod
_TEXTS: Schema = {"type": "object", "additionalProperties": _TEXT}


def _fields(*required: str, **properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _one_of(*words: str) -> Schema:
    return {"enum": list(words)}


_NAMED = _fields("name", name=_TEXT)
_REFERENCE = _fields("kind", "name", apiVersion=_TEXT, kind=_TEXT, name=_TEXT)
_LLM_SERVICE = _fields(
    model=_fields("uri", uri=_TEXT, name=_TEXT),
    replicas=_COUNT,
    labels=_TEXTS,
    template=_ANYTHING,
    baseRefs=_list(_NAMED),
    router=_fields(
        gateway=_fields(),
        route=_fields(
            group={"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", "maxLength": 63},
            weight={"type": "integer", "minimum": 0, "maximum": 1_000_000},
        ),
    ),
)
_ANALYSIS = _fields(
    templates=_list(_fields(templateName=_TEXT)),
    args=_list(
        _fields("name", name=_TEXT, valueFrom=_fields(fieldRef=_fields("fieldPath", fieldPath=_TEXT)))
    ),
)
_HOOK_TYPES = (
    *("rollout", "pre-rollout", "post-rollout", "confirm-rollout", "confirm-promotion", "rollback", "event"),
    *("confirm-traffic-increase", "skip"),
)

FIELDS: Mapping[tuple[str, str], Schema] = {
    ("serving.kserve.io/v1alpha2", "LLMInferenceService"): _LLM_SERVICE,
    ("serving.kserve.io/v1alpha2", "LLMInferenceServiceConfig"): _LLM_SERVICE,
    ("serving.kserve.io/v1alpha1", "ServingRuntime"): _fields(
        "containers",
        supportedModelFormats=_list(
            _fields(
                "name",
                name=_TEXT,
                version=_TEXT,
                autoSelect=_FLAG,
                priority={"type": "integer", "minimum": 1},
            )
        ),
        annotations=_TEXTS,
        containers=_list(_ANYTHING),
        volumes=_list(_ANYTHING),
    ),
    ("serving.kserve.io/v1beta1", "InferenceService"): _fields(
        "predictor",
        predictor=_fields(
            canaryTrafficPercent={"type": "integer", "minimum": 0, "maximum": 100},
            minReplicas=_COUNT,
            maxReplicas=_COUNT,
            timeout=_COUNT,
            model=_fields("modelFormat", modelFormat=_NAMED, runtime=_TEXT, storageUri=_TEXT),
            automountServiceAccountToken=_FLAG,
            enableServiceLinks=_FLAG,
            securityContext=_ANYTHING,
            containers=_list(_ANYTHING),
            volumes=_list(_ANYTHING),
        ),
    ),
    ("argoproj.io/v1alpha1", "Rollout"): _fields(
        replicas=_COUNT,
        workloadRef=_fields(
            apiVersion=_TEXT, kind=_TEXT, name=_TEXT, scaleDown=_one_of("never", "onsuccess", "progressively")
        ),
        strategy=_fields(
            canary=_fields(
                stableService=_TEXT,
                maxSurge=_COUNT,
                maxUnavailable=_COUNT,
                steps=_list(_fields(analysis=_ANALYSIS, setWeight=_COUNT)),
            )
        ),
    ),
    ("argoproj.io/v1alpha1", "AnalysisTemplate"): _fields(
        "metrics",
        args=_list(_NAMED),
        metrics=_list(
            _fields(
                *("name", "provider"),
                name=_TEXT,
                interval=_TEXT,
                consecutiveSuccessLimit=_COUNT,
                inconclusiveLimit=_COUNT,
                consecutiveErrorLimit=_COUNT,
                successCondition=_TEXT,
                failureCondition=_TEXT,
                provider=_fields(web=_fields("url", url=_TEXT, timeoutSeconds=_COUNT)),
            )
        ),
    ),
    ("flagger.app/v1beta1", "Canary"): _fields(
        *("targetRef", "service", "analysis"),
        provider=_TEXT,
        targetRef=_REFERENCE,
        progressDeadlineSeconds=_COUNT,
        service=_fields("port", name=_TEXT, port=_COUNT, targetPort=_TEXT, portDiscovery=_FLAG),
        analysis=_fields(
            interval={"type": "string", "pattern": "^[0-9]+(m|s)"},
            threshold=_COUNT,
            iterations=_COUNT,
            webhooks=_list(
                _fields(
                    *("name", "url"),
                    name=_TEXT,
                    type=_one_of(*_HOOK_TYPES),
                    url=_TEXT,
                    timeout={"type": "string", "pattern": "^[0-9]+(m|s)"},
                    muteAlert=_FLAG,
                )
            ),
        ),
    ),
}
"""Version and kind -> what its ``spec`` may have."""


def problems(document: Mapping[str, Any]) -> list[str]:
    """Return what its project's schema does not allow in an object."""
    kind = document["apiVersion"], document["kind"]
    schemas = [FIELDS[kind], *([_published()[kind]] if "DRAFTPROOF_CRDS" in os.environ else [])]
    return [
        f"{error.json_path}: {error.message[:200]}"
        for schema in schemas
        for error in jsonschema.Draft202012Validator(schema).iter_errors(document["spec"])
    ]


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
