"""Every rule of the resource that takes more than a type or a bound, each in CEL and in Python.

The models carry the CEL into the CRD, so that ``kubectl apply`` refuses; ``strict`` runs the Python on a file.
One table of objects proves both sides, the CEL on a real API server.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from .base import Rule, fraction, seconds
from .owned import OWNED_FLAGS, owned

NAME_PATTERN: Final = "^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$"
FLAG_PATTERN: Final = "^[a-z][a-z0-9]*(-[a-z0-9]+)*$"
FLAG_LENGTH: Final = 64
MIN_INTERVAL: Final = "1s"
MAX_INTERVAL: Final = "1h"


def _rising(numbers: Sequence[int]) -> bool:
    return all(a < b for a, b in pairwise(numbers))


def _rising_cel(items: str, field: str) -> str:
    return (
        f"{items}.map(s, s.{field}).isSorted() && {items}.all(a, {items}.filter(b, b.{field} == a.{field}).size() == 1)"
    )


def _zero(count: int | str) -> bool:
    return not count or (isinstance(count, str) and re.fullmatch("0+%", count) is not None)


def _data_parallel(spec: dict[str, Any]) -> bool:
    return any(
        spec["topology"][role]["parallelism"]["data"] > 1 for role in ("prefill", "decode") if role in spec["topology"]
    )


def _tensor_sizes_divide(topology: dict[str, Any]) -> bool:
    if "prefill" not in topology:
        return True
    p, d = (topology[role]["parallelism"]["tensor"] for role in ("prefill", "decode"))
    return bool(p % d == 0 or d % p == 0)


def _owned_here(args: dict[str, str]) -> str:
    each = sorted(f"{flag} (instead: {OWNED_FLAGS[name]})" for flag in args if (name := owned(flag)))
    return f"the operator sets these flags itself: {', '.join(each)}; remove them"


NAME: Final = Rule(
    f"self.metadata.name.matches('{NAME_PATTERN}')",
    lambda resource: re.fullmatch(NAME_PATTERN, resource["metadata"]["name"]) is not None,
    "metadata.name must have at most 40 characters of a-z, 0-9 and -, begin with a letter and not end with -, because "
    "Services and Pods are named after it: choose another name",
    field="metadata.name",
)

ONE_SOURCE: Final = Rule(
    "!(has(self.huggingFace) && has(self.volume))",
    lambda source: not ("huggingFace" in source and "volume" in source),
    "two sources are named: keep huggingFace or volume, and remove the other",
)

METHOD_MTP: Final = Rule(
    "self == 'mtp'",
    lambda method: method == "mtp",
    "only mtp has the tunings that this operator sets: write mtp, or remove the field",
)

DEPTH: Final = Rule(
    "self >= 1 && self <= 16",
    lambda depth: 1 <= depth <= 16,
    "depth must be 1 to 16: choose a number in that range, such as 3",
)

DEPTH_BY_BATCH_BELOW_DEPTH: Final = Rule(
    "!has(self.depthByBatch) || self.depthByBatch.all(r, r.depth <= self.depth)",
    lambda s: all(r["depth"] <= s["depth"] for r in s.get("depthByBatch", [])),
    "an entry has a depth above speculation.depth: lower it, or raise speculation.depth",
    field="depthByBatch",
)

DEPTH_BY_BATCH_RISES: Final = Rule(
    f"!has(self.depthByBatch) || ({_rising_cel('self.depthByBatch', 'upTo')})",
    lambda s: _rising([r["upTo"] for r in s.get("depthByBatch", [])]),
    "upTo must rise from entry to entry: sort the entries and remove duplicates",
    field="depthByBatch",
)

DEPTH_BY_BATCH_ALONE: Final = Rule(
    "!has(self.speculation.depthByBatch) || self.speculation.depthByBatch.size() == 0 || "
    "(self.topology.decode.parallelism.data == 1 && "
    "(!has(self.topology.prefill) || self.topology.prefill.parallelism.data == 1))",
    lambda spec: not (spec["speculation"].get("depthByBatch") and _data_parallel(spec)),
    "a depth schedule doesn't work with data parallelism, where vLLM switches it off: remove it, or set "
    "topology.<role>.parallelism.data to 1",
    field="speculation.depthByBatch",
)

CAPTURE_SIZES: Final = Rule(
    "!has(self.engine.cudagraphCaptureSizes) || self.engine.cudagraphCaptureSizes.size() == 0 || "
    "self.engine.cudagraphCaptureSizes.exists(s, s % (self.speculation.depth + 1) == 0)",
    lambda spec: (
        not (sizes := spec["engine"].get("cudagraphCaptureSizes"))
        or any(size % (spec["speculation"]["depth"] + 1) == 0 for size in sizes)
    ),
    "no size is a multiple of speculation.depth + 1, the tokens of one decode step, so no graph would ever be used: "
    "add such a multiple, or remove the list",
    field="engine.cudagraphCaptureSizes",
)

FLAG_NAMES: Final = Rule(
    f"self.all(k, k.size() <= {FLAG_LENGTH} && k.matches('{FLAG_PATTERN}'))",
    lambda args: all(len(k) <= FLAG_LENGTH and re.fullmatch(FLAG_PATTERN, k) for k in args),
    f"write each flag by its long name in kebab-case without dashes in front, at most {FLAG_LENGTH} characters, "
    "such as max-model-len",
)

_OWNED_CEL: Final = "[" + ", ".join(f"'{flag}'" for flag in OWNED_FLAGS) + "]"

# A CEL message that names the flags costs more than the API server grants: it can't bound a map's keys.
OWNED: Final = Rule(
    f"self.all(k, !{_OWNED_CEL}.exists(o, o.startsWith(k.startsWith('no-') ? k.substring(3) : k)))",
    lambda args: not any(owned(flag) for flag in args),
    "a flag here, or the beginning of one, is the operator's: remove it and set its field instead (model, speculation, "
    "engine.cudagraphCaptureSizes, engine.apiKeySecretRef, topology.<role>.parallelism, topology.<role>.drain, "
    "topology.kvTransfer); host, port and config can't be set",
    explain=_owned_here,
)

ENV_VALUE_ONCE: Final = Rule(
    "!(has(self.value) && has(self.valueFrom))",
    lambda variable: not ("value" in variable and "valueFrom" in variable),
    "value and valueFrom are both set: keep one of them",
)

REPLICAS_KNOWN: Final = Rule(
    "has(self.replicas) || has(self.maxReplicas)",
    lambda role: "replicas" in role or "maxReplicas" in role,
    "the number of Pods is missing: set replicas, or maxReplicas alone when an autoscaler sets the number",
)

REPLICAS_BOUNDED: Final = Rule(
    "!has(self.replicas) || !has(self.maxReplicas) || self.replicas <= self.maxReplicas",
    lambda role: "replicas" not in role or "maxReplicas" not in role or role["replicas"] <= role["maxReplicas"],
    "replicas is above maxReplicas: lower replicas, or raise maxReplicas",
    field="replicas",
)

TENSOR_SIZES: Final = Rule(
    "!has(self.prefill) || self.prefill.parallelism.tensor % self.decode.parallelism.tensor == 0 || "
    "self.decode.parallelism.tensor % self.prefill.parallelism.tensor == 0",
    _tensor_sizes_divide,
    "prefill.parallelism.tensor and decode.parallelism.tensor: one must divide the other for KV to move; change one "
    "of them",
    field="prefill.parallelism.tensor",
)

CAPACITY: Final = Rule(
    "!((type(self.maxSurge) == int ? self.maxSurge == 0 : self.maxSurge.matches('^0+%$')) && "
    "(type(self.maxUnavailable) == int ? self.maxUnavailable == 0 : self.maxUnavailable.matches('^0+%$')))",
    lambda capacity: not (_zero(capacity["maxSurge"]) and _zero(capacity["maxUnavailable"])),
    "maxSurge and maxUnavailable are both 0, so no Pod could ever be replaced: set one of them to 1 or more",
)

STEPS_RISE: Final = Rule(
    _rising_cel("self.steps", "weight"),
    lambda rollout: _rising([step["weight"] for step in rollout["steps"]]),
    "weights must rise from step to step: sort the steps and remove duplicates",
    field="steps",
)

STEPS_END: Final = Rule(
    "self.steps[self.steps.size() - 1].weight == 100",
    lambda rollout: rollout["steps"][-1]["weight"] == 100,
    "the last step must have weight 100: add {weight: 100} at the end",
    field="steps",
)

INTERVAL: Final = Rule(
    f"duration(self) >= duration('{MIN_INTERVAL}') && duration(self) <= duration('{MAX_INTERVAL}')",
    lambda interval: seconds(MIN_INTERVAL) <= seconds(interval) <= seconds(MAX_INTERVAL),
    f"an interval must be {MIN_INTERVAL} to {MAX_INTERVAL}: shorter loads the Pods that are scraped, longer sees "
    "nothing; write one such as 5s",
)

# Percentages are compared by their text: its form is bounded by the field's pattern.
MARGIN: Final = Rule(
    "!self.matches('^0+([.]0+)?%$') && self.matches('^[0-4]?[0-9]([.]|%)')",
    lambda margin: 0.0 < fraction(margin) < 0.5,
    "a margin must be above 0% and below 50%, or nothing could ever pass, or fail: write one such as 5%",
)

TOLERANCE: Final = Rule(
    "!self.matches('^0+([.]0+)?%$') && !self.startsWith('100')",
    lambda tolerance: 0.0 < fraction(tolerance) < 1.0,
    "a margin must be above 0% and below 100%, or nothing could ever pass, or fail: write one such as 2%",
)

FLOOR: Final = Rule(
    "!self.startsWith('100')",
    lambda floor: fraction(floor) < 1.0,
    "a floor must be below 100%, or every revision would fall under it: write one such as 10%, or 0% for none",
)

CONFIDENCE: Final = Rule(
    "self.matches('^[5-9][0-9]([.]|%)')",
    lambda confidence: 0.5 <= fraction(confidence) < 1.0,
    "confidence must be at least 50% and below 100%: write one such as 99%",
)

ALL: Final = (
    NAME,
    ONE_SOURCE,
    METHOD_MTP,
    DEPTH,
    DEPTH_BY_BATCH_BELOW_DEPTH,
    DEPTH_BY_BATCH_RISES,
    DEPTH_BY_BATCH_ALONE,
    CAPTURE_SIZES,
    FLAG_NAMES,
    OWNED,
    ENV_VALUE_ONCE,
    REPLICAS_KNOWN,
    REPLICAS_BOUNDED,
    TENSOR_SIZES,
    CAPACITY,
    STEPS_RISE,
    STEPS_END,
    INTERVAL,
    MARGIN,
    TOLERANCE,
    FLOOR,
    CONFIDENCE,
)

BY_CEL: Final = {rule.cel: rule for rule in ALL}
"""The rules by what the schema knows of them."""
