"""Find the machines of a server whose ranks are spread over a Kubernetes LeaderWorkerSet.

The controller sets LWS_LEADER_ADDRESS (``<set>-<group>.<service>.<namespace>``) and LWS_GROUP_SIZE in every
container. The name of worker i's pod is the leader's with ``-<i>`` appended, in the same service
(kubernetes-sigs/lws v0.9.0: ``pkg/utils/pod/pod_utils.go``,
``site/content/en/docs/reference/labels-annotations-and-environment-variables.md``).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping

from pipelines.deploy.triton.launch import Launch
from pipelines.deploy.triton.nvidia_triton import SSH_PORT
from pipelines.errors import ServerStartError

WORKER_TIMEOUT_S = 600.0  # nodes may have to pull an image of tens of gigabytes
_POLL_S = 1.0


def leader_worker_set_hosts(launch: Launch, environment: Mapping[str, str]) -> dict[str, int]:
    """Return machine -> number of ranks, the leader first.

    The leader also runs the orchestrator and the draft's ranks.

    Raises:
        ServerStartError: This is not the leader of a LeaderWorkerSet of that size.
    """
    address = environment.get("LWS_LEADER_ADDRESS", "")
    size, index = environment.get("LWS_GROUP_SIZE", ""), environment.get("LWS_WORKER_INDEX", "0")
    if not address or size != str(launch.num_nodes) or index != "0":
        raise ServerStartError(
            "the machines of the other ranks are unknown",
            values=f"LWS_LEADER_ADDRESS={address!r}, LWS_GROUP_SIZE={size!r}, LWS_WORKER_INDEX={index!r}",
            limit=f"must run in the leader of a LeaderWorkerSet of {launch.num_nodes} pods",
            remedy="apply the manifests of 'make deployment', or set tensorrt_llm.num_nodes: 1",
        )
    leader, _, domain = address.partition(".")
    # The leader's name without its domain is its host name, by which mpirun recognizes it and avoids SSH.
    names = [leader, *(f"{leader}-{i}.{domain}" for i in range(1, launch.num_nodes))]
    first = launch.world_size - launch.ranks_per_node * (launch.num_nodes - 1)
    return {name: launch.ranks_per_node if i else first for i, name in enumerate(names)}


def wait_for(
    hosts: Mapping[str, int],
    port: int = SSH_PORT,
    timeout_s: float = WORKER_TIMEOUT_S,
    poll_s: float = _POLL_S,
) -> None:
    """Wait until the SSH server of every machine but the first, which is this one, can be reached.

    Args:
        hosts: Return value of ``leader_worker_set_hosts``.
        port: Port of the SSH servers.
        timeout_s: Time limit for all machines together.
        poll_s: Time between two attempts.

    Raises:
        ServerStartError: A machine cannot be reached in time.
    """
    deadline_s = time.monotonic() + timeout_s
    for host in list(hosts)[1:]:
        while True:
            try:
                socket.create_connection((host, port), timeout=5.0).close()
                break
            except OSError as error:
                if time.monotonic() > deadline_s:
                    raise ServerStartError(
                        "a machine of the server cannot be reached",
                        values=f"{host}, port {port}: {error}",
                        limit=f"{timeout_s:.0f} s",
                        remedy="inspect its pod with kubectl describe pod and kubectl logs",
                    ) from None
            time.sleep(poll_s)
