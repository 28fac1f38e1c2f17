"""Routers of a revision: the Pod template, the proxy's configuration and the Deployment.

vllm-router runs in static mode with the stable name of every Pod that it may use, so that it can mean no other; it
listens on loopback alone, behind Envoy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final

import yaml

from specdecode.api import SpecDecodeDeployment, SpecDecodeDeploymentSpec, seconds
from specdecode.api.names import (
    ANNOTATION_BACKENDS,
    ENGINE_PORT,
    PROXY_METRICS_PORT,
    PROXY_PORT,
    ROUTER_METRICS_PORT,
    ROUTER_PORT,
    EngineRole,
    child,
    labels,
)
from specdecode.engine.command import disaggregated, secret_variable
from specdecode.rollout.types import ArmTarget

from .meta import manifest, select
from .pods import CONTAINER_SECURITY, http_probe, template
from .podtemplate import merge

ROUTER: Final = "router"
PROXY: Final = "proxy"
CONFIG_VOLUME: Final = "envoy-config"
CONFIG_MOUNT: Final = "/etc/specdecode"
DRAIN_LEAST: Final = 5
"""Seconds that a router goes on serving after its end was announced: until nobody sends it new connections."""
RESERVE: Final = 15
_STARTUP: Final = 3600
"""Seconds that a starting router waits for a first engine of each role; it would exit and back off after them."""


def longest_stream(spec: SpecDecodeDeploymentSpec) -> int:
    """Seconds after which vllm-router cuts a request."""
    return math.ceil(seconds(spec.topology.router.request_timeout))


@lru_cache(maxsize=32)
def proxy_config(longest: int) -> str:
    """Envoy's configuration: the packaged one, with the longest request of ``longest`` seconds in it."""
    config = yaml.safe_load(files("specdecode.workload").joinpath("envoy.yaml").read_text(encoding="utf-8"))
    for listener in config["static_resources"]["listeners"]:
        for chain in listener["filter_chains"]:
            manager = chain["filters"][0]["typed_config"]
            if "stream_idle_timeout" in manager:
                # A generation without streaming is silent until its end.
                manager["stream_idle_timeout"] = f"{longest + RESERVE}s"
    return yaml.safe_dump(config, sort_keys=False, width=120)


def pod_template(spec: SpecDecodeDeploymentSpec, router_image: str) -> dict[str, Any]:
    """The Pod template, without the list of Pods, with the router's ``podTemplate`` merged."""
    router = spec.topology.router
    image = router.image or router_image
    drain = ["specdecode-router-drain", "--at-least", str(DRAIN_LEAST), "--at-most", str(longest_stream(spec))]
    args = [
        *("--host", "127.0.0.1", "--port", str(ROUTER_PORT)),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(ROUTER_METRICS_PORT)),
        *("--policy", router.policy),
        *("--request-timeout-secs", str(longest_stream(spec))),
        # A Pod that refuses is out of rotation within a second, one whose address is gone within six, where the
        # defaults take minutes; and back in another. One that is busy may take a moment to answer, and where it is the
        # only one a router that takes it out refuses everybody.
        *("--health-check-interval-secs", "1", "--health-check-timeout-secs", "5"),
        *("--health-failure-threshold", "1", "--health-success-threshold", "1"),
        *("--worker-startup-timeout-secs", str(_STARTUP), "--worker-startup-check-interval", "1"),
    ]
    if disaggregated(spec):
        args += ["--vllm-pd-disaggregation", "--kv-connector", "nixl"]
    env = []
    if spec.engine.api_key_secret_ref is not None:
        # What vllm-router presents to engines; it asks clients for nothing.
        key = spec.engine.api_key_secret_ref
        env.append(secret_variable("OPENAI_API_KEY", key.name, key.key))
    shared: dict[str, Any] = {
        "image": image,
        "lifecycle": {"preStop": {"exec": {"command": drain}}},
        "securityContext": CONTAINER_SECURITY,
    }
    vllm_router: dict[str, Any] = {
        "name": ROUTER,
        "command": ["vllm-router"],
        "args": args,
        "env": env,
        # Through the proxy, because vllm-router listens on loopback alone.
        "startupProbe": http_probe("/liveness", PROXY_PORT, period=1, failures=_STARTUP),
        "livenessProbe": http_probe("/liveness", PROXY_PORT, period=10, failures=3),
        "resources": merge({"requests": {"cpu": "100m", "memory": "256Mi"}}, router.resources),
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
        **shared,
    }
    proxy: dict[str, Any] = {
        "name": PROXY,
        "command": ["envoy"],
        "args": ["-c", f"{CONFIG_MOUNT}/envoy.yaml", "--disable-hot-restart", "--log-level", "warning"],
        "ports": [
            {"name": "http", "containerPort": PROXY_PORT},
            {"name": "metrics", "containerPort": PROXY_METRICS_PORT},
        ],
        # Fails while a whole side has no healthy engine. /health would fail with a single one. A clear no counts after
        # three seconds; a busy machine's silence isn't one.
        "readinessProbe": http_probe("/readiness", PROXY_PORT, period=1, failures=3),
        "livenessProbe": http_probe("/metrics", PROXY_METRICS_PORT, period=10, failures=3),
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        "volumeMounts": [
            {"name": CONFIG_VOLUME, "mountPath": CONFIG_MOUNT, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
        **deepcopy(shared),
    }
    body = {
        "terminationGracePeriodSeconds": DRAIN_LEAST + longest_stream(spec) + RESERVE,
        "containers": [proxy, vllm_router],
        "volumes": [{"name": CONFIG_VOLUME, "configMap": {}}, {"name": "tmp", "emptyDir": {}}],
    }
    base = template({"app.kubernetes.io/name": "vllm-router"}, body, spec.engine)
    return merge(base, router.pod_template)


def worker_url(name: str, namespace: str, revision: int, role: EngineRole, ordinal: int) -> str:
    """Address of one engine by the stable name that its headless Service gives it, whatever the cluster's domain."""
    workload = child(name, revision, role)
    return f"http://{workload}-{ordinal}.{workload}.{namespace}.svc:{ENGINE_PORT}"


def workers(resource: SpecDecodeDeployment, target: ArmTarget, *, split: bool) -> list[str]:
    """The router's list of Pods as arguments. ``split``: prefill and decode are apart."""
    meta = resource.metadata

    def urls(role: EngineRole, number: int) -> list[str]:
        return [worker_url(meta.name, meta.namespace, target.revision, role, i) for i in range(number)]

    prefill, decode = target.backends
    if not split:
        return ["--worker-urls", *urls("decode", decode)]
    words = [word for url in urls("prefill", prefill) for word in ("--prefill", url)]
    return words + [word for url in urls("decode", decode) for word in ("--decode", url)]


def deployment(resource: SpecDecodeDeployment, target: ArmTarget, rendering: Mapping[str, Any]) -> dict[str, Any]:
    """The Deployment of one revision's routers: the frozen template with the list of Pods filled in."""
    meta = resource.metadata
    name = child(meta.name, target.revision, "router")
    pod = select(rendering["router"], labels(meta.name, target.revision, "router"))
    annotations = pod["metadata"].setdefault("annotations", {})
    annotations[ANNOTATION_BACKENDS] = f"{target.backends[0]}/{target.backends[1]}"
    for container in pod["spec"]["containers"]:
        if container["name"] == ROUTER:
            container["args"] = [*container["args"], *workers(resource, target, split="prefill" in rendering)]
    for volume in pod["spec"]["volumes"]:
        if volume["name"] == CONFIG_VOLUME:
            volume["configMap"] = {"name": name}
    surge = {"maxSurge": 1, "maxUnavailable": 0} if target.router_surge else {"maxSurge": 0, "maxUnavailable": 1}
    body = manifest(resource, "apps/v1", "Deployment", name, revision=target.revision, role="router")
    body["spec"] = {
        "replicas": target.router,
        "revisionHistoryLimit": 1,
        "minReadySeconds": 1,
        "selector": {"matchLabels": labels(meta.name, target.revision, "router")},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": surge},
        "template": pod,
    }
    return body


def config_map(resource: SpecDecodeDeployment, revision: int, rendering: Mapping[str, Any]) -> dict[str, Any]:
    """The frozen configuration of one revision's routers."""
    name = child(resource.metadata.name, revision, "router")
    body = manifest(resource, "v1", "ConfigMap", name, revision=revision, role="router")
    body["immutable"] = True
    body["data"] = deepcopy(dict(rendering["config"]))
    return body
