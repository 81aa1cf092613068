"""Schemas of other rollout tools' objects: only the fields that our examples use; unknown fields are refused.

No package carries these schemas. They follow the definitions in the tools' own repositories, against which
the examples were validated as well:

- Rollout and AnalysisTemplate: argoproj/argo-rollouts v1.9.1, manifests/crds/rollout-crd.yaml and
analysis-template-crd.yaml; further rules for a metric: utils/analysis/factory.go, ValidateMetric.

- Canary: fluxcd/flagger v1.44.0, artifacts/flagger/crd.yaml.

- InferenceService: kserve/kserve v0.20.0, config/crd/full/serving.kserve.io_inferenceservices.yaml.

Pods inside them are not checked here: ``kubernetes_validate`` has their schema.
"""

from __future__ import annotations

from typing import Any

TEXT = {"type": "string"}
WHOLE = {"type": "integer"}
TRUTH = {"type": "boolean"}
OPEN = {"type": "object"}
WHOLE_OR_TEXT = {"type": ["integer", "string"]}
DURATION = {"type": "string", "pattern": "^[0-9]+(m|s)"}
LABELS = {"type": "object", "additionalProperties": TEXT}


def closed(*required: str, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": list(required),
        "properties": properties,
        "additionalProperties": False,
    }


def some(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "minItems": 1, "items": items}


def one_of(*values: str) -> dict[str, Any]:
    return {"enum": list(values)}


def document(api_version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = closed("name", name=TEXT, labels=LABELS, annotations=LABELS)
    return closed(
        *("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": api_version},
        kind={"const": kind},
        metadata=metadata,
        spec=spec,
    )


_ARGO_ARG = closed(
    "name", name=TEXT, value=TEXT, valueFrom=closed(fieldRef=closed("fieldPath", fieldPath=TEXT))
)
_ARGO_STEP = {
    **closed(
        setWeight=WHOLE, analysis=closed(templates=some(closed(templateName=TEXT)), args=some(_ARGO_ARG))
    ),
    "minProperties": 1,
    "maxProperties": 1,
}
_ARGO_METRIC = closed(
    *("name", "provider"),
    name=TEXT,
    interval=TEXT,
    count=WHOLE_OR_TEXT,
    consecutiveSuccessLimit=WHOLE_OR_TEXT,
    inconclusiveLimit=WHOLE_OR_TEXT,
    consecutiveErrorLimit=WHOLE_OR_TEXT,
    failureLimit=WHOLE_OR_TEXT,
    successCondition=TEXT,
    failureCondition=TEXT,
    provider={
        **closed(
            web=closed("url", url=TEXT, timeoutSeconds=WHOLE, jsonPath=TEXT),
            job=closed(
                "spec",
                spec=closed("template", template=OPEN, backoffLimit=WHOLE, activeDeadlineSeconds=WHOLE),
            ),
        ),
        "minProperties": 1,
        "maxProperties": 1,
    },
)
_FLAGGER_HOOK = closed(
    *("name", "url"),
    name=TEXT,
    type=one_of(
        *("confirm-rollout", "pre-rollout", "rollout", "confirm-traffic-increase", "confirm-promotion"),
        *("post-rollout", "rollback", "event"),
    ),
    url=TEXT,
    timeout=DURATION,
    muteAlert=TRUTH,
    retries=WHOLE,
)

SCHEMAS: dict[str, dict[str, Any]] = {
    "Rollout": document(
        "argoproj.io/v1alpha1",
        "Rollout",
        closed(
            replicas=WHOLE,
            workloadRef=closed(
                apiVersion=TEXT, kind=TEXT, name=TEXT, scaleDown=one_of("never", "onsuccess", "progressively")
            ),
            strategy=closed(
                canary=closed(
                    stableService=TEXT,
                    maxSurge=WHOLE_OR_TEXT,
                    maxUnavailable=WHOLE_OR_TEXT,
                    steps=some(_ARGO_STEP),
                )
            ),
        ),
    ),
    "AnalysisTemplate": document(
        "argoproj.io/v1alpha1",
        "AnalysisTemplate",
        closed(args=some(_ARGO_ARG), metrics=some(_ARGO_METRIC)),
    ),
    "Canary": document(
        "flagger.app/v1beta1",
        "Canary",
        closed(
            *("targetRef", "analysis"),
            provider=one_of("kubernetes", "istio", "linkerd", "nginx", "gatewayapi:v1"),
            targetRef=closed(
                *("apiVersion", "kind", "name"),
                apiVersion=TEXT,
                kind=one_of("DaemonSet", "Deployment", "Service"),
                name=TEXT,
            ),
            progressDeadlineSeconds={"type": "number"},
            service=closed(
                "port", name=TEXT, port={"type": "number"}, targetPort=WHOLE_OR_TEXT, portDiscovery=TRUTH
            ),
            analysis={
                **closed(
                    interval=DURATION,
                    threshold={"type": "number"},
                    iterations={"type": "number"},
                    stepWeight={"type": "number"},
                    webhooks=some(_FLAGGER_HOOK),
                ),
                "oneOf": [
                    {"required": ["interval", "threshold", "iterations"]},
                    {"required": ["interval", "threshold", "stepWeight"]},
                ],
            },
        ),
    ),
    "InferenceService": document(
        "serving.kserve.io/v1beta1",
        "InferenceService",
        closed(
            "predictor",
            predictor=closed(
                canaryTrafficPercent=WHOLE,
                minReplicas=WHOLE,
                maxReplicas=WHOLE,
                timeout=WHOLE,
                automountServiceAccountToken=TRUTH,
                enableServiceLinks=TRUTH,
                securityContext=OPEN,
                containers=some(OPEN),
                volumes=some(OPEN),
            ),
        ),
    ),
}
