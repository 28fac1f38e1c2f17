"""Checks of ``podTemplate``: its shape, and that it is no second writer of what the operator sets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from specdecode.api import SpecDecodeDeploymentSpec
from specdecode.api.faults import Fault
from specdecode.api.names import GROUP, LABEL_MANAGED_BY, Role
from specdecode.api.owned import OWNED_FLAGS, owned

from .environment import OWNED_ENV
from .versions import other_form

_LISTS: Final = ("containers", "initContainers", "volumes")
_CONTAINER_LISTS: Final = ("args", "command", "env", "ports", "volumeMounts")
_CONTROLLED: Final = {
    "hostname": "a StatefulSet names its Pods",
    "restartPolicy": "serving Pods are always restarted",
    "subdomain": "Pods are found under their headless Service",
}
ENGINE_SHORT: Final = {
    "dp": "data-parallel-size",
    "ep": "enable-expert-parallel",
    "pp": "pipeline-parallel-size",
    "sc": "speculative-config",
    "tp": "tensor-parallel-size",
}
"""Short names of vLLM's owned flags, from its engine/arg_utils.py."""

ROUTER_FLAGS: Final[dict[str, str]] = {
    "decode": "nothing: the operator lists the Pods",
    "host": "nothing: the operator sets it",
    "kv-connector": "topology.kvTransfer.connector",
    "policy": "topology.router.policy",
    "port": "nothing: the operator sets it",
    "prefill": "nothing: the operator lists the Pods",
    "prometheus-host": "nothing: the operator sets it",
    "prometheus-port": "nothing: the operator sets it",
    "request-timeout-secs": "topology.router.requestTimeout",
    "service-discovery": "nothing: the operator lists the Pods",
    "vllm-pd-disaggregation": "topology.prefill",
    "worker-urls": "nothing: the operator lists the Pods",
}
"""vllm-router's flags that the operator writes, each with the field that a person sets instead. Those of its health
checks aren't among them: a person's stand after the operator's and so above them."""

PROXY_FLAGS: Final[dict[str, str]] = {
    "config-path": "nothing: the operator writes the configuration",
    "config-yaml": "nothing: the operator writes the configuration",
}
"""Envoy's, likewise."""


def check_templates(spec: SpecDecodeDeploymentSpec) -> Iterator[Fault]:
    """Faults of every ``podTemplate``."""
    for role, part in spec.topology.roles.items():
        yield from _template(f"spec.topology.{role}.podTemplate", role, part.pod_template)
    yield from _template("spec.topology.router.podTemplate", "router", spec.topology.router.pod_template)


def own_container(template: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """What a podTemplate says of the operator's container of that name; empty where it says nothing, or nonsense."""
    body = template.get("spec")
    containers = body.get("containers") if isinstance(body, Mapping) else None
    for container in containers if isinstance(containers, list) else []:
        if isinstance(container, Mapping) and container.get("name") == name:
            found: Mapping[str, Any] = container
            return found
    return {}


def owned_by(word: str, flags: Mapping[str, str]) -> str | None:
    """The owned flag that a word of a command line sets, in any spelling that an argparse parser takes.

    vLLM's also reads ``_`` for ``-`` and ``--flag.key=value`` for a key of a JSON flag.
    """
    if not word.startswith("-") or word in ("-", "--"):
        return None
    bare = word.lstrip("-").partition("=")[0].partition(".")[0].replace("_", "-")
    if not word.startswith("--"):
        short = {"c": "config-path"} if flags is PROXY_FLAGS else ENGINE_SHORT if flags is OWNED_FLAGS else {}
        return short.get(bare)
    if flags is OWNED_FLAGS:
        return owned(bare) or owned(other_form(bare))
    return next((flag for flag in flags if flag.startswith(bare)), None)


def _template(path: str, role: Role, template: Mapping[str, Any]) -> Iterator[Fault]:
    shape = list(_shape(path, template))
    yield from shape
    if shape:
        return
    yield from _metadata(path, template.get("metadata") or {})
    body = template.get("spec") or {}
    for field, why in _CONTROLLED.items():
        if field in body:
            yield Fault(f"{path}.spec.{field}", str(body[field]), f"can't be set, because {why}: remove it")
    for i, container in enumerate(body.get("containers", [])):
        yield from _container(f"{path}.spec.containers[{i}]", role, container)


def _shape(path: str, template: Mapping[str, Any]) -> Iterator[Fault]:
    """Only what merging rests on; the API server judges the rest when the Pod template is applied."""
    for key in template:
        if key not in ("metadata", "spec"):
            yield Fault(f"{path}.{key}", "", "is no part of a Pod template: write it under metadata or spec")
    for key in ("metadata", "spec"):
        if not isinstance(template.get(key, {}), Mapping):
            yield _wants(f"{path}.{key}", template[key], "a mapping")
            return
    for key in ("labels", "annotations"):
        if not isinstance(template.get("metadata", {}).get(key, {}), Mapping):
            yield _wants(f"{path}.metadata.{key}", template["metadata"][key], "a mapping")
    body = template.get("spec", {})
    for key in _LISTS:
        if key in body:
            yield from _named_list(f"{path}.spec.{key}", body[key])
    containers = body.get("containers", [])
    for i, container in enumerate(containers if isinstance(containers, list) else []):
        for key in _CONTAINER_LISTS:
            if isinstance(container, Mapping) and not isinstance(container.get(key, []), list):
                yield _wants(f"{path}.spec.containers[{i}].{key}", container[key], "a list")


def _named_list(path: str, value: Any) -> Iterator[Fault]:
    if not isinstance(value, list):
        yield _wants(path, value, "a list")
        return
    for i, item in enumerate(value):
        if not isinstance(item, Mapping) or not isinstance(item.get("name"), str):
            yield _wants(f"{path}[{i}]", item, "a mapping with a name, by which it is merged")


def _wants(path: str, value: Any, what: str) -> Fault:
    return Fault(path, str(value), f"has the wrong type: write {what}")


def _metadata(path: str, metadata: Mapping[str, Any]) -> Iterator[Fault]:
    for key in metadata:
        if key not in ("labels", "annotations"):
            yield Fault(f"{path}.metadata.{key}", str(metadata[key]), "can't be set: only labels and annotations can")
    for kind in ("labels", "annotations"):
        for key, value in (metadata.get(kind) or {}).items():
            if key.startswith(f"{GROUP}/") or key == LABEL_MANAGED_BY:
                where = f"{path}.metadata.{kind}[{key}]"
                yield Fault(where, str(value), "is the operator's, which finds its Pods by it: remove it")


def _container(path: str, role: Role, container: Mapping[str, Any]) -> Iterator[Fault]:
    name = container["name"]
    ours = ("proxy", "router") if role == "router" else ("vllm",)
    if name not in ours:
        return
    if "image" in container:
        field = "spec.topology.router.image" if role == "router" else "spec.engine.image"
        yield Fault(f"{path}.image", str(container["image"]), f"is set by {field}: set it there and remove it here")
    flags = {"vllm": OWNED_FLAGS, "router": ROUTER_FLAGS, "proxy": PROXY_FLAGS}[name]
    for key in ("command", "args"):
        yield from _words(f"{path}.{key}", container.get(key, []), flags)
    for i, variable in enumerate(container.get("env", [])):
        named = variable.get("name") if isinstance(variable, Mapping) else None
        if named in OWNED_ENV:
            yield Fault(f"{path}.env[{i}].name", named, f"is set by {OWNED_ENV[named]}: remove it here")


def _words(path: str, words: Sequence[Any], flags: Mapping[str, str]) -> Iterator[Fault]:
    for i, word in enumerate(words):
        flag = owned_by(str(word), flags)
        if flag is not None:
            yield Fault(
                f"{path}[{i}]", str(word), f"sets --{flag}, which is the operator's; set instead: {flags[flag]}"
            )
