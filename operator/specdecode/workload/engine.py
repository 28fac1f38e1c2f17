"""The Pod template of prefill and decode: one vLLM engine."""

from __future__ import annotations

import math
from typing import Any, Final

from specdecode.api import SpecDecodeDeploymentSpec, seconds
from specdecode.api.names import ENGINE_PORT, EngineRole
from specdecode.api.topology import RoleSpec
from specdecode.engine.command import CACHE_MOUNT, MODEL_MOUNT, PROGRAM, command, environment, side_channel_ports
from specdecode.engine.versions import version_of

from .pods import CONTAINER_SECURITY, http_probe, template
from .podtemplate import merge

CONTAINER: Final = "vllm"
PRE_STOP: Final = 5
"""Seconds between the end's announcement and SIGTERM: routers and EndpointSlices hear of it meanwhile."""
RESERVE: Final = 15
"""Seconds that a drained engine has to leave the GPU."""
_STARTUP_PERIOD: Final = 5


def grace_period(role: RoleSpec) -> int:
    """Seconds from the end's announcement to SIGKILL: more than the pre-stop delay and the drain together."""
    return PRE_STOP + math.ceil(seconds(role.drain)) + RESERVE


def resources(spec: SpecDecodeDeploymentSpec, role: RoleSpec) -> dict[str, Any]:
    """The engine's resources; accelerators are asked for where the role doesn't say their number itself."""
    if spec.engine.device == "Cpu":
        return role.resources
    accelerators = {spec.engine.accelerator_resource: str(role.parallelism.accelerators)}
    return merge({"limits": accelerators}, role.resources)


def pod_template(spec: SpecDecodeDeploymentSpec, role: EngineRole) -> dict[str, Any]:
    """The Pod template, with the role's ``podTemplate`` merged."""
    part = spec.topology.roles[role]
    words = command(spec, role)
    startup = math.ceil(seconds(part.startup_timeout) / _STARTUP_PERIOD)
    ports = [{"name": "http", "containerPort": ENGINE_PORT}]
    ports += [{"name": f"nixl-{i}", "containerPort": port} for i, port in enumerate(side_channel_ports(spec, role))]
    mounts: list[dict[str, Any]] = [
        {"name": "cache", "mountPath": CACHE_MOUNT},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    volumes: list[dict[str, Any]] = [
        {"name": "cache", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
        # Tensor-parallel workers talk through it; a container's own has 64 MB.
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    volume = spec.model.source.volume
    if volume is not None:
        mounts.append({"name": "model", "mountPath": MODEL_MOUNT, "readOnly": True})
        claim = {"claimName": volume.claim_name, "readOnly": True}
        volumes.append({"name": "model", "persistentVolumeClaim": claim})
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": spec.engine.image,
        "command": list(PROGRAM),
        "args": words[len(PROGRAM) :],
        "env": environment(spec, role),
        "ports": ports,
        "resources": resources(spec, part),
        # The socket refuses while the model loads, and /health is 503 once the engine is dead.
        "startupProbe": http_probe("/health", ENGINE_PORT, period=_STARTUP_PERIOD, failures=startup),
        "readinessProbe": http_probe("/health", ENGINE_PORT, period=5, failures=2),
        "livenessProbe": http_probe("/health", ENGINE_PORT, period=10, failures=6),
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP}}},
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": mounts,
    }
    labels = {"app.kubernetes.io/name": "vllm"}
    if version := version_of(spec).text:
        labels["app.kubernetes.io/version"] = version
    body = {
        "terminationGracePeriodSeconds": grace_period(part),
        "containers": [container],
        "volumes": volumes,
    }
    return merge(template(labels, body, spec.engine), part.pod_template)
