"""Render the manifests of a fleet: servers and front doors, as plain files and as a Helm chart.

Both are made from the templates in ``pipelines/deploy/templates/fleet`` and from the manifests of one server.
The chart has an expression of Helm wherever a plain file has a number that its user may want to change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from build.rendering.templates import render_text

Render = Callable[[Mapping[str, str]], Mapping[str, str]]
"""Renders the manifests of one server with some values: their texts by file name."""

_OF_ONE_SERVER = ("service.yaml", "disruption-budget.yaml", "network-policy.yaml", "settings.yaml")
_DEFAULTS = {
    "servers": "3",
    "front_doors": "2",
    "most_servers": "10",
    "most_front_doors": "6",
    "gateway": "gateway",
    "candidate": "CANDIDATE",
    "namespace": "default",
}
_IN_CHART = {
    "name": "{{ .Release.Name }}",
    "image": "{{ .Values.image }}",
    "cpus": "{{ .Values.servers.cpus }}",
    "servers": "{{ .Values.servers.replicas }}",
    "most_servers": "{{ .Values.servers.maxReplicas }}",
    "front_doors": "{{ .Values.frontDoors.replicas }}",
    "most_front_doors": "{{ .Values.frontDoors.maxReplicas }}",
    "gateway": "{{ .Values.gateway }}",
    "package": "{{ .Values.servers.package }}",
    "candidate": "{{ .Values.candidate }}",
    "namespace": "{{ .Release.Namespace }}",
}
_REPLICAS = _IN_CHART["servers"]
_AGENT = "fleet_servers/agent.yaml"
_CANDIDATE = "optional/candidate.yaml"  # its switch is the folder of the package
_SPREAD_OVER = ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
_HEAD = (
    "# The servers of a fleet, each with a run directory of its own, which is made anew from the package,\n"
    "# the folder PACKAGE of the claim ${name}-packages or of an image (package-image.yaml). Beside each\n"
    "# server is the agent of rollouts. Apply this instead of kubernetes/.\n"
)


def fleet_files(templates: Path, values: Mapping[str, str], one_server: Render) -> dict[str, str]:
    """Return the texts of a fleet's files, by their paths below the deployment directory.

    Args:
        templates: Folder of the fleet's templates.
        values: Values of the placeholders for one server.
        one_server: Renders the manifests of one server.

    Raises:
        RepositoryError: A template cannot be rendered.
    """

    def manifests(wanted: Mapping[str, str]) -> dict[str, str]:
        return _manifests(templates, wanted, one_server({name: wanted[name] for name in values}))

    plain = manifests({**values, **_DEFAULTS, "package": values["recipe"]})
    chart = manifests({**values, **_DEFAULTS, **_IN_CHART})
    return {
        **{f"fleet/{name}": text for name, text in plain.items()},
        **{f"chart/templates/{Path(name).name}": _optional(name, text) for name, text in chart.items()},
        "chart/Chart.yaml": _dump(_chart(values["name"])),
        "chart/values.yaml": _dump(_values(values, [name for name in chart if "/" in name])),
    }


def _manifests(templates: Path, values: Mapping[str, str], served: Mapping[str, str]) -> dict[str, str]:
    texts = {name: served[name] for name in _OF_ONE_SERVER}
    agent, _ = render_text((templates.parent / _AGENT).read_text(encoding="utf-8"), values, _AGENT)
    servers = _dump(_servers(yaml.safe_load(served["deployment.yaml"]), values, yaml.safe_load(agent)))
    head = _HEAD.replace("${name}", values["name"])
    texts["servers.yaml"] = head + servers.replace(f"'{_REPLICAS}'", _REPLICAS)  # a number
    for path in sorted(templates.rglob("*.yaml")):
        name = path.relative_to(templates).as_posix()
        texts[name], _ = render_text(path.read_text(encoding="utf-8"), values, f"fleet/{name}")
    return texts


def _servers(
    deployment: dict[str, Any], values: Mapping[str, str], agent: Mapping[str, Any]
) -> dict[str, Any]:
    """Change the Deployment of one server to one of several, which can be replaced one after the other.

    Args:
        deployment: Deployment of one server; it is changed.
        values: Values of the placeholders.
        agent: Container and volume of the agent beside each server.
    """
    spec = deployment["spec"]
    template = spec["template"]
    pod, labels = template["spec"], spec["selector"]["matchLabels"]
    replicas = values["servers"]
    spec["replicas"] = int(replicas) if replicas.isdecimal() else replicas
    spec["strategy"] = {
        "type": "RollingUpdate",
        "rollingUpdate": {
            "maxUnavailable": int(values["max_unavailable"]),
            "maxSurge": int(values["max_surge"]),
        },
    }
    # Endpoint pickers read from it which names the metrics have.
    template["metadata"]["labels"]["inference.networking.k8s.io/engine-type"] = "vllm"
    pod["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": dict(labels)},
        }
        for key in _SPREAD_OVER
    ]
    server = pod["containers"][0]
    # A variable, because the package of a promoted candidate becomes the servers' own.
    server["env"] = [*server.get("env", ()), {"name": "PACKAGE", "value": values["package"]}]
    server["command"][server["command"].index("--package") + 1] = "/packages/$(PACKAGE)"
    pod["containers"].append(agent["container"])
    pod["volumes"].append(agent["volume"])
    run = {"name": "run", "emptyDir": {"sizeLimit": f"{values['run_gib']}Gi"}}
    pod["volumes"] = [run if volume["name"] == "run" else volume for volume in pod["volumes"]]
    return deployment


def _optional(name: str, text: str) -> str:
    """Return a template of the chart; one of the optional ones is rendered only if its value says so."""
    if "/" not in name:
        return text
    return f"{{{{- if .Values.{_switch(name)} }}}}\n{text}{{{{- end }}}}\n"


def _switch(name: str) -> str:
    """Return the value that switches an optional file on: ``httpRoute`` for ``optional/http-route.yaml``."""
    first, *others = Path(name).stem.split("-")
    return first + "".join(word.capitalize() for word in others)


def _chart(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v2",
        "name": name,
        "description": "Servers and front doors of a pair of models, with speculative decoding",
        "type": "application",
        "version": "0.1.0",
        "kubeVersion": ">=1.30.0-0",
    }


def _values(values: Mapping[str, str], optional: list[str]) -> dict[str, Any]:
    return {
        "image": values["image"],
        "servers": {
            "replicas": int(_DEFAULTS["servers"]),
            "maxReplicas": int(_DEFAULTS["most_servers"]),
            "cpus": values["cpus"],
            "package": values["recipe"],
        },
        "frontDoors": {
            "replicas": int(_DEFAULTS["front_doors"]),
            "maxReplicas": int(_DEFAULTS["most_front_doors"]),
        },
        "gateway": _DEFAULTS["gateway"],
        **{_switch(name): "" if name == _CANDIDATE else False for name in optional},
    }


def _dump(document: Any) -> str:
    return yaml.safe_dump(document, sort_keys=False, width=1000)
