"""How a simulated Pod lives: the Stages that kwok follows, and the annotations and image names that steer them.

A Pod starts (gets its address), becomes Ready after a delay, and goes a delay after its deletion. On top of that it
can be told to fail, by an annotation (on a living Pod, or in a Pod template) or by a mark in the name of an image:

| fault | annotation `bed.specdecode.dev/fault` | image name contains | what the Pod does |
|---|---|---|---|
| image that can't be pulled | `missing` | `bed-missing` | waits with ErrImagePull, then ImagePullBackOff |
| crash loop | `crash` | `bed-crash` | restarts again and again, waiting reason CrashLoopBackOff |
| failing readiness | `unready` | `bed-unready` | runs, and is not (or no longer) Ready |

The annotation wins, and `none` heals. `bed.specdecode.dev/start-delay` and `bed.specdecode.dev/stop-delay` take Go
durations ("300ms", "5s"): the time from the address to Ready, and from the deletion to the end of the Pod.
"""

from __future__ import annotations

import json
from string import Template
from typing import Any, Final

from specdecode.api.names import LABEL_ROLE

ANNOTATION_FAULT: Final = "bed.specdecode.dev/fault"
ANNOTATION_START_DELAY: Final = "bed.specdecode.dev/start-delay"
ANNOTATION_STOP_DELAY: Final = "bed.specdecode.dev/stop-delay"
ANNOTATION_LOST: Final = "bed.specdecode.dev/lost"
"""On a Node whose machine is gone: "true"."""

LOST: Final = "lost"
"""The fault of a Pod on such a Node: no longer Ready, and nothing else about it changes, not even by its deletion."""
FAULTS: Final = ("missing", "crash", "unready")

_FAULT = (
    f'.metadata.annotations["{ANNOTATION_FAULT}"] '
    f'// ([.spec.containers[].image | capture("bed-(?<fault>{"|".join(FAULTS)})").fault] | first) // "none"'
)
_ALIVE = {"key": ".metadata.deletionTimestamp", "operator": "DoesNotExist"}
_HAS_ADDRESS = {"key": ".status.podIP", "operator": "Exists"}
_NO_ADDRESS = {"key": ".status.podIP", "operator": "DoesNotExist"}
_READY = '.status.conditions[]? | select(.type == "Ready") | .status'
_WAITING = ".status.containerStatuses[]?.state.waiting.reason"

# Go templates; $$ is a dollar sign of theirs, $name one of ours.
_CONDITIONS = Template("""
{{ $$now := Now }}
conditions:
- {type: Initialized, status: "True", lastTransitionTime: {{ $$now | Quote }}}
- {type: Ready, status: "$ready", lastTransitionTime: {{ $$now | Quote }}}
- {type: ContainersReady, status: "$ready", lastTransitionTime: {{ $$now | Quote }}}
""")
_ADDRESS = """
hostIP: {{ index (NodeIPsWith .spec.nodeName) 0 | Quote }}
{{ $ips := PodIPsWith .spec.nodeName (or .spec.hostNetwork false) .metadata.uid .metadata.name .metadata.namespace }}
podIP: {{ index $ips 0 | Quote }}
podIPs:
- ip: {{ index $ips 0 | Quote }}
phase: Running
startTime: {{ Now | Quote }}
"""
_RUNNING = Template("""
{{ $$root := . }}
containerStatuses:
{{ range $$index, $$item := .spec.containers }}
{{ $$old := dict }}
{{ if $$root.status.containerStatuses }}{{ $$old = index $$root.status.containerStatuses $$index }}{{ end }}
- name: {{ $$item.name | Quote }}
  image: {{ $$item.image | Quote }}
  imageID: {{ printf "%s@sha256:%s" $$item.image (sha256sum $$item.image) | Quote }}
  ready: $ready
  started: $ready
  restartCount: {{ or $$old.restartCount 0 }}
  state: {running: {startedAt: {{ Now | Quote }}}}
{{ end }}
initContainerStatuses:
{{ range .spec.initContainers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: {{ printf "%s@sha256:%s" .image (sha256sum .image) | Quote }}
  restartCount: 0
{{ if eq (or .restartPolicy "") "Always" }}
  ready: $ready
  started: true
  state: {running: {startedAt: {{ Now | Quote }}}}
{{ else }}
  ready: true
  started: false
  state: {terminated: {exitCode: 0, reason: Completed, startedAt: {{ Now | Quote }}, finishedAt: {{ Now | Quote }}}}
{{ end }}
{{ end }}
""")
_CRASHED = """
{{ $root := . }}
containerStatuses:
{{ range $index, $item := .spec.containers }}
{{ $old := index $root.status.containerStatuses $index }}
- name: {{ $item.name | Quote }}
  image: {{ $item.image | Quote }}
  imageID: {{ printf "%s@sha256:%s" $item.image (sha256sum $item.image) | Quote }}
  ready: false
  started: false
  restartCount: {{ add1 (or $old.restartCount 0) }}
  lastState:
    terminated: {exitCode: 1, reason: Error, startedAt: {{ Now | Quote }}, finishedAt: {{ Now | Quote }}}
  state:
    waiting:
      reason: CrashLoopBackOff
      message: {{ printf "back-off restarting failed container %s" $item.name | Quote }}
{{ end }}
"""
_UNPULLED = Template("""
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: ""
  ready: false
  started: false
  restartCount: 0
  state: {waiting: {reason: $reason, message: {{ printf "failed to pull image %s: not found" .image | Quote }}}}
{{ end }}
""")
_NODE_STATUS = """
{{ $now := Now }}
phase: Running
conditions:
{{ range NodeConditions }}
- type: {{ .type | Quote }}
  status: {{ .status | Quote }}
  reason: {{ .reason | Quote }}
  message: {{ .message | Quote }}
  lastHeartbeatTime: {{ $now | Quote }}
  lastTransitionTime: {{ $now | Quote }}
{{ end }}
addresses:
- {type: InternalIP, address: {{ NodeIP | Quote }}}
"""
_NODE_LOST = """
conditions:
- type: Ready
  status: Unknown
  reason: NodeStatusUnknown
  message: Kubelet stopped posting node status.
  lastHeartbeatTime: {{ Now | Quote }}
  lastTransitionTime: {{ Now | Quote }}
"""


def _fault(*names: str) -> dict[str, Any]:
    return {"key": _FAULT, "operator": "In", "values": list(names)}


def _node_lost(operator: str) -> dict[str, Any]:
    return {"key": f'.metadata.annotations["{ANNOTATION_LOST}"]', "operator": operator, "values": ["true"]}


def _stage(
    name: str, match: list[dict[str, Any]], next_: dict[str, Any], delay: str | None = None, kind: str = "Pod"
) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "resourceRef": {"apiGroup": "v1", "kind": kind},
        "selector": {"matchExpressions": match},
        "next": next_,
    }
    if delay is not None:
        spec["delay"] = {"durationMilliseconds": 0, "durationFrom": {"expressionFrom": delay}}
    return {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Stage", "metadata": {"name": name}, "spec": spec}


def _status(*templates: str) -> dict[str, Any]:
    return {"statusTemplate": "".join(templates)}


def stages(start_delay: str, stop_delay: str, router_stop_delay: str) -> list[dict[str, Any]]:
    """The Stage objects of a bed.

    Args:
        start_delay: from a Pod's address to Ready, where no annotation says otherwise; a Go duration.
        stop_delay: from an engine Pod's deletion to its end, likewise.
        router_stop_delay: the same for router Pods, which drain.
    """
    start = f'.metadata.annotations["{ANNOTATION_START_DELAY}"] // "{start_delay}"'
    stop = (
        f'.metadata.annotations["{ANNOTATION_STOP_DELAY}"] // '
        f'(if .metadata.labels["{LABEL_ROLE}"] == "router" then "{router_stop_delay}" else "{stop_delay}" end)'
    )
    not_ready, ready = _CONDITIONS.substitute(ready="False"), _CONDITIONS.substitute(ready="True")
    starting, serving = _RUNNING.substitute(ready="false"), _RUNNING.substitute(ready="true")
    up = {"key": ".status.phase", "operator": "In", "values": ["Running"]}
    is_ready = {"key": _READY, "operator": "In", "values": ["True"]}
    isnt_ready = {"key": _READY, "operator": "NotIn", "values": ["True"]}
    waits = {"key": _WAITING, "operator": "Exists"}
    waits_not = {"key": _WAITING, "operator": "DoesNotExist"}
    pull_failed = {"key": _WAITING, "operator": "In", "values": ["ErrImagePull"]}
    runs = _fault("none", "crash", "unready")
    return [
        _stage("pod-start", [_ALIVE, _NO_ADDRESS, runs], _status(not_ready, starting, _ADDRESS)),
        _stage("pod-ready", [_ALIVE, up, isnt_ready, waits_not, _fault("none")], _status(ready, serving), start),
        _stage("pod-lost", [is_ready, _fault(LOST)], _status(not_ready)),  # as the node controller marks it
        _stage("pod-unready", [_ALIVE, is_ready, _fault("unready")], _status(not_ready, starting)),
        _stage(
            "pod-crash",
            [_ALIVE, _HAS_ADDRESS, _fault("crash")],
            _status(not_ready, _CRASHED),
            f'if ([{_WAITING} // empty] | length) > 0 then "5s" else "200ms" end',
        ),
        _stage("pod-heal", [_ALIVE, _HAS_ADDRESS, waits, _fault("none", "unready")], _status(not_ready, starting)),
        _stage(
            "pod-pull",
            [_ALIVE, _NO_ADDRESS, waits_not, _fault("missing")],
            _status(not_ready, _UNPULLED.substitute(reason="ErrImagePull"), "phase: Pending\n"),
        ),
        _stage(
            "pod-pull-back-off",
            [_ALIVE, _NO_ADDRESS, pull_failed, _fault("missing")],
            _status(not_ready, _UNPULLED.substitute(reason="ImagePullBackOff"), "phase: Pending\n"),
            '"1s"',
        ),
        _stage(
            "pod-stop",
            [
                {"key": ".metadata.deletionTimestamp", "operator": "Exists"},
                {"key": _FAULT, "operator": "NotIn", "values": [LOST]},
            ],
            {"delete": True},
            stop,
        ),
        _stage("node-ready", [isnt_ready, _node_lost("NotIn")], _status(_NODE_STATUS), kind="Node"),
        _stage("node-lost", [is_ready, _node_lost("In")], _status(_NODE_LOST), kind="Node"),
    ]


def to_yaml(objects: list[dict[str, Any]]) -> str:
    """The objects as one stream of YAML documents (JSON is YAML)."""
    return "\n---\n".join(json.dumps(found) for found in objects) + "\n"
