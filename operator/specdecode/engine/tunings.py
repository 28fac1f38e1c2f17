"""What Pods say of their tunings, compared with what their revision was told.

The patched image serves ``vllm:spec_decode_config_info`` with the configuration as it runs (docs/images.md lists its
labels). Told ``Auto`` is satisfied by anything, ``Unsupported`` included; another value by itself alone. A Pod without
the metric is unknown, which is no fault.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from specdecode.api import SpecDecodeDeploymentSpec
from specdecode.api.names import EngineRole

from .command import disaggregated, speculative_config
from .report import TuningReport
from .versions import patched

UNKNOWN: Final = "Unknown"

_SHOWN: Final = {
    "late": "Late",
    "upstream": "Upstream",
    "off": "Disabled",
    "inactive": "Inactive",
    "unsupported": "Unsupported",
    "auto": "Auto",
    "always": "Always",
    "never": "Never",
    "enabled": "Enabled",
    "disabled": "Disabled",
}
_AGREE: Final = ("patch_series", "method", "depth", "lookahead_backoff", "lookahead_backoff_tokens")
"""What prefill and decode must have in common for KV to be handed over soundly."""


@dataclass(frozen=True, slots=True)
class PodInfo:
    """One Pod's own word on its speculative configuration: the info metric's labels as they came."""

    labels: Mapping[str, str]

    def __getitem__(self, label: str) -> str:
        """The label's value, empty where the Pod's image doesn't give it."""
        return self.labels.get(label, "")

    def shown(self, tuning: str) -> str:
        """The tuning in force, in the words of the resource."""
        value = self[tuning]
        if tuning != "depth":
            return _SHOWN.get(value, value) or UNKNOWN
        schedule = self["depth_schedule"]
        return f"{value} ({schedule})" if value and schedule else value or UNKNOWN


def report(
    revision: int,
    spec: SpecDecodeDeploymentSpec,
    infos: Mapping[EngineRole, Mapping[str, Mapping[str, str] | None]],
    expected: Mapping[EngineRole, Collection[str]],
) -> TuningReport:
    """What the Pods of a revision run.

    Args:
        revision: its number.
        spec: the spec that it was born from.
        infos: labels of the info metric by role and Pod name; None for a Pod that answered without one.
        expected: names of the ready Pods by role, all of which must have answered.
    """
    said: dict[EngineRole, dict[str, PodInfo]] = {
        role: {name: PodInfo(labels) for name, labels in sorted(pods.items()) if labels is not None}
        for role, pods in infos.items()
    }
    silent = any(labels is None for pods in infos.values() for labels in pods.values())
    wrong = [line for role, pods in said.items() for line in _wrong(spec, role, pods)]
    wrong += _disagreements(said)
    return TuningReport(
        revision=revision,
        effective={role: _effective(said.get(role, {}), len(infos.get(role, {}))) for role in spec.topology.roles},
        wrong=tuple(wrong),
        unhonoured=tuple(_unhonoured(spec)) if silent else (),
        complete=all(name in infos.get(role, {}) for role, names in expected.items() for name in names),
    )


def _effective(pods: Mapping[str, PodInfo], answered: int) -> dict[str, str]:
    found = {}
    for tuning in ("depth", "lookahead_backoff", "host_copy", "top_k_sharing"):
        values = {info.shown(tuning) for info in pods.values()}
        found[tuning] = values.pop() if len(values) == 1 and len(pods) == answered else UNKNOWN
    return found


def _wrong(spec: SpecDecodeDeploymentSpec, role: EngineRole, pods: Mapping[str, PodInfo]) -> Iterator[str]:
    kv_role = ("kv_producer" if role == "prefill" else "kv_consumer") if disaggregated(spec) else "none"
    speculation = spec.speculation
    for name, info in pods.items():
        exact = {
            "method": speculation.method,
            "depth": str(speculation.depth),
            "kv_role": kv_role,
            "depth_schedule": _schedule(spec, role),
        }
        for label, told in exact.items():
            if label in info.labels and info[label] != told:
                yield _line(role, name, label, told or "none", info[label] or "none", info[f"{label}_reason"])
        tunings = {
            "lookahead_backoff": speculation.lookahead_backoff,
            "host_copy": speculation.host_copy,
            "top_k_sharing": speculation.top_k_sharing,
        }
        for label, asked in tunings.items():
            runs = info.shown(label)
            if asked not in ("Auto", runs) and runs not in ("Inactive", UNKNOWN):
                yield _line(role, name, label, asked, runs, info[f"{label}_reason"])


def _line(role: EngineRole, pod: str, label: str, told: str, runs: str, reason: str) -> str:
    return f"{role} Pod {pod} runs {label} {runs}, told {told}" + (f": {reason}" if reason else "")


def _schedule(spec: SpecDecodeDeploymentSpec, role: EngineRole) -> str:
    """The depth schedule as the info metric writes it."""
    entries = speculative_config(spec, role).get("num_speculative_tokens_per_batch_size", [])
    return ",".join(f"{first}-{last}:{depth}" for first, last, depth in entries)


def _disagreements(said: Mapping[EngineRole, Mapping[str, PodInfo]]) -> Iterator[str]:
    for label in _AGREE:
        values = {role: sorted({info[label] for info in pods.values()}) for role, pods in said.items() if pods}
        if len({tuple(v) for v in values.values()}) > 1 or any(len(v) > 1 for v in values.values()):
            each = "; ".join(f"{role} {_join(found)}" for role, found in sorted(values.items()))
            yield f"Pods don't agree in {label}: {each}"


def _join(values: Iterable[str]) -> str:
    return " and ".join(value or "none" for value in values)


def _unhonoured(spec: SpecDecodeDeploymentSpec) -> Iterator[str]:
    """What an unpatched image can't set, or set but not show."""
    speculation = spec.speculation
    settable = {"speculation.depth": str(speculation.depth), "speculation.topKSharing": speculation.top_k_sharing}
    if disaggregated(spec):
        backoff = speculation.lookahead_backoff
        if backoff == "Disabled":
            yield "speculation.lookaheadBackoff Disabled can't be set"
        else:
            settable["speculation.lookaheadBackoff"] = backoff
    if speculation.host_copy == "Auto":
        settable["speculation.hostCopy"] = speculation.host_copy
    else:
        yield f"speculation.hostCopy {speculation.host_copy} can't be set"
    for path, value in settable.items():
        yield f"{path} {value} can't be shown"
    if patched(spec):
        yield "the image passes for patched, but its Pods serve no vllm:spec_decode_config_info"
