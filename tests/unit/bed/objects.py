"""Objects as an API server serves them, for the tests of this folder."""

from __future__ import annotations

from typing import Any

from specdecode.api import names
from tests.bed.api import Json

NAMESPACE = "team"
NAME = "llm"


def pod(
    role: names.Role, revision: int, ordinal: int | str, *, ready: bool = True, going: bool = False, **more: Any
) -> Json:
    meta: Json = {
        "name": f"{names.child(NAME, revision, role)}-{ordinal}",
        "namespace": NAMESPACE,
        "uid": f"{role}-{revision}-{ordinal}",
        "labels": names.labels(NAME, revision, role),
    }
    if going:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {
        "metadata": meta,
        "spec": {"containers": [{"name": "vllm" if role != "router" else "proxy", "image": "i:1"} | more]},
        "status": {
            "podIP": "127.64.0.1",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            "containerStatuses": [{"started": ready}],
        },
    }


def engines(role: names.Role, revision: int, replicas: int, *, env: str = "") -> Json:
    labels = names.labels(NAME, revision, role)
    return {
        "metadata": {"name": names.child(NAME, revision, role), "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"spec": {"containers": [{"name": "vllm", "env": [{"name": "X", "value": env}]}]}},
        },
    }


def routers(revision: int, replicas: int, *args: str) -> Json:
    labels = names.labels(NAME, revision, "router")
    return {
        "metadata": {"name": names.child(NAME, revision, "router"), "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"spec": {"containers": [{"name": "router", "args": list(args)}]}},
        },
    }


def service(name: str, labels: dict[str, str], selector: dict[str, str]) -> Json:
    return {
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        "spec": {"selector": selector},
    }


def entry() -> Json:
    selector = {names.LABEL_DEPLOYMENT: NAME, names.LABEL_ROLE: "router"}
    return service(NAME, {names.LABEL_DEPLOYMENT: NAME}, selector)


def route(**weights: int) -> Json:
    backends = [{"name": name.replace("_", "-"), "weight": weight} for name, weight in weights.items()]
    return {
        "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": {names.LABEL_DEPLOYMENT: NAME}},
        "spec": {"rules": [{"backendRefs": backends}]},
    }


def resource(
    prefill: int | None = 2,
    decode: int | None = 4,
    *,
    stable: int | None = 1,
    canary: int | None = 2,
    surge: int | str = 1,
    unavailable: int | str = 0,
    by_errors: bool = False,
) -> Json:
    chosen = {"maxSurge": surge, "maxUnavailable": unavailable}
    status: Json = {}
    if stable is not None:
        status["stable"] = {"revision": stable}
    if canary is not None:
        status["canary"] = {"revision": canary}
    if by_errors:
        status["rollout"] = {"failure": {"byErrors": True}}
    return {
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {
            "topology": {
                role: {} if replicas is None else {"replicas": replicas}
                for role, replicas in (("prefill", prefill), ("decode", decode))
            },
            "rollout": {"capacity": {"prefill": chosen, "decode": chosen}},
        },
        "status": status,
    }
