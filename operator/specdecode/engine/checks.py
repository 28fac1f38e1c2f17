"""What is wrong with a spec that its schema can't say: rules that take more than one field, or vLLM's own code.

Most of these end in a crash at start-up, some in a server that runs and does something else. What a checkpoint alone
tells (whether a depth above its number of modules is a multiple of it, say) can't be known here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

from specdecode.api import SpecDecodeDeploymentSpec, seconds
from specdecode.api.faults import Fault
from specdecode.api.names import EngineRole
from specdecode.api.topology import RoleSpec

from .command import disaggregated, merged_args, merged_env
from .environment import OWNED_ENV
from .templates import check_templates, own_container
from .versions import BACKOFF_KEY, MULTI_MODULE_NAMES, VersionTable, patched, version_of

REFUSED_FLAGS: Final[dict[str, str]] = {
    "data-parallel-address": "a replica is one Pod: remove it",
    "data-parallel-external-lb": "a replica is one Pod: remove it",
    "data-parallel-hybrid-lb": "a replica is one Pod: remove it",
    "data-parallel-multi-port-external-lb": "a replica is one Pod: remove it",
    "data-parallel-rank": "a replica is one Pod: remove it",
    "data-parallel-size-local": "a replica is one Pod: remove it",
    "data-parallel-start-rank": "a replica is one Pod: remove it",
    "disable-expert-parallel": "set spec.topology.<role>.parallelism.expert instead: remove it",
    "disable-log-stats": "the counters of acceptance would be gone, and no change could be judged: remove it",
    "headless": "the Pod would answer nobody: remove it",
    "hf-token": "secrets don't belong in a spec: set spec.model.source.huggingFace.tokenSecretRef",
    "kv-sharing-fast-prefill": "vLLM refuses it with MTP, whose drafter needs every prompt token's hidden state: "
    "remove it",
    "nnodes": "a replica is one Pod: remove it",
    "node-rank": "a replica is one Pod: remove it",
    "root-path": "probes and routers use the plain paths: remove it",
    "ssl-certfile": "routers speak plain HTTP to engines: remove it, and end TLS at the gateway",
    "ssl-keyfile": "routers speak plain HTTP to engines: remove it, and end TLS at the gateway",
    "uds": "routers reach engines over TCP: remove it",
}
"""Flags that can't work here, each with the reason and the remedy."""

HANDSHAKE_FLAGS: Final = (
    "attention-backend",
    "code-revision",
    "disable-hybrid-kv-cache-manager",
    "dtype",
    "hf-overrides",
    "kv-cache-dtype",
)
"""Flags that change what is in NIXL's compatibility hash (``compute_nixl_compatibility_hash``). A mismatch is found at
the first transfer only, when every Pod is ready."""

MIN_PREFILL_DRAIN: Final = 30.0
"""Seconds: vLLM's ``kv_lease_duration``, for which decode may still come and read."""

_MULTIPLIERS: Final = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def check(spec: SpecDecodeDeploymentSpec) -> list[Fault]:
    """Everything wrong with a spec, errors before warnings; the same spec always gives the same list."""
    faults = [fault for part in _CHECKS for fault in part(spec)]
    return sorted(faults, key=lambda fault: fault.severity == "warning")


def number(text: str) -> int | None:
    """A flag's whole number, as vLLM reads it (``8k`` is 8000, ``8K`` 8192); None: it is none."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT]?)", text.strip())
    if found is None:
        return None
    value = float(found[1]) * _MULTIPLIERS.get(found[2], 1)
    return int(value) if value == int(value) else None


def _roles(spec: SpecDecodeDeploymentSpec) -> Iterator[tuple[EngineRole, RoleSpec, dict[str, str]]]:
    for role, part in spec.topology.roles.items():
        yield role, part, merged_args(spec, role)


def _args_path(spec: SpecDecodeDeploymentSpec, role: EngineRole, flag: str) -> str:
    """Where a merged flag was written."""
    here = flag in spec.topology.roles[role].args
    return f"spec.topology.{role}.args.{flag}" if here else f"spec.engine.args.{flag}"


def _warning(path: str, value: str, message: str, reason: str) -> Fault:
    return Fault(path, value, message, reason=reason, severity="warning")


def _version(spec: SpecDecodeDeploymentSpec) -> Iterator[Fault]:
    version = version_of(spec)
    if version.known:
        return
    path, value = (
        ("spec.engine.version", spec.engine.version)
        if spec.engine.version
        else ("spec.engine.image", spec.engine.image)
    )
    yield _warning(
        path,
        value,
        f"doesn't tell a vLLM version that this operator knows; it goes by {version.table.name}'s rules: set "
        "spec.engine.version",
        "UnknownEngineVersion",
    )


def _flags(spec: SpecDecodeDeploymentSpec) -> Iterator[Fault]:
    version = version_of(spec)
    sources = {"spec.engine.args": spec.engine.args}
    sources |= {f"spec.topology.{role}.args": part.args for role, part, _ in _roles(spec)}
    for path, args in sources.items():
        for flag, value in args.items():
            if flag in REFUSED_FLAGS:
                yield Fault(f"{path}.{flag}", value, REFUSED_FLAGS[flag])
            elif version.known and (message := _unknown_or_misused(version.table, flag, value)):
                yield Fault(f"{path}.{flag}", value, message)


def _unknown_or_misused(table: VersionTable, flag: str, value: str) -> str:
    """What vLLM's parser would have against a flag; empty: nothing."""
    arity = table.arity(flag)
    if arity is None:
        near = get_close_matches(flag, table.flags, n=1)
        remedy = f"did you mean {near[0]}?" if near else "remove it"
        return f"vLLM {table.name} has no such flag and would not start: {remedy}"
    if arity == "none" and value:
        off = f", or no-{flag} to turn it off" if flag in table.switches else ""
        return f'stands alone, and vLLM would not start: write "" as its value{off}'
    if arity == "value" and not value:
        return "takes a value, and vLLM would not start without: write one"
    return ""


def _batch_tokens(spec: SpecDecodeDeploymentSpec) -> Iterator[Fault]:
    depth = spec.speculation.depth
    for role, _, args in _roles(spec):
        tokens = number(args.get("max-num-batched-tokens", ""))
        if tokens is None:
            continue
        path = _args_path(spec, role, "max-num-batched-tokens")
        sequences = number(args.get("max-num-seqs", ""))
        if tokens <= depth:
            yield Fault(path, str(tokens), f"leaves no room beside {depth} draft tokens: write more than {depth}")
        elif sequences is not None and tokens < sequences:
            yield Fault(path, str(tokens), f"is under max-num-seqs ({sequences}): raise it, or lower max-num-seqs")
        elif sequences is not None and "enable-lora" in args and tokens < sequences * (depth + 1):
            least = sequences * (depth + 1)
            message = f"is under max-num-seqs * (depth + 1) = {least}, which LoRA needs: write {least} or more"
            yield Fault(path, str(tokens), message)


def _block_size(spec: SpecDecodeDeploymentSpec) -> Iterator[Fault]:
    depth = spec.speculation.depth
    for role, _, args in _roles(spec):
        size = number(args.get("block-size", ""))
        if size is not None and size < depth and "no-enable-prefix-caching" not in args:
            path = _args_path(spec, role, "block-size")
            message = (
                f"is under the depth ({depth}): multi-module MTP refuses that with prefix caching; raise it, or add "
                "no-enable-prefix-caching"
            )
            yield _warning(path, str(size), message, "BlockSizeUnderDepth")


def _capture_sizes(spec: SpecDecodeDeploymentSpec) -> Iterator[Fault]:
    step = spec.speculation.depth + 1
    for role, _, args in _roles(spec):
        if "compilation-config" not in args:
            continue
        path = _args_path(spec, role, "compilation-config")
        try:
            config = json.loads(args["compilation-config"])
        except ValueError:
            yield Fault(path, args["compilation-config"], 'is no JSON: write an object such as {"mode": 3}')
            continue
        sizes = config.get("cudagraph_capture_sizes") if isinstance(config, dict) else None
        if not sizes:
            continue
        if spec.engine.cudagraph_capture_sizes:
            message = "sets cudagraph_capture_sizes, and so does spec.engine.cudagraphCaptureSizes: keep one of the two"
            yield Fault(path, args["compilation-config"], message)
        elif not any(isinstance(size, int) and size % step == 0 for size in sizes):
            message = f"has no capture size that is a multiple of depth + 1 = {step}: add one"
            yield Fault(path, args["compilation-config"], message)


def _environment(spec: SpecDecodeDeploymentSpec) -> Iterator[Fault]:
    sources = {"spec.engine.env": spec.engine.env}
    sources |= {f"spec.topology.{role}.env": part.env for role, part, _ in _roles(spec)}
    hub = spec.model.source.hugging_face
    token = hub is not None and hub.token_secret_ref is not None
    for path, variables in sources.items():
        for i, variable in enumerate(variables):
            where = f"{path}[{i}].name"
            if variable.name in OWNED_ENV:
                yield Fault(where, variable.name, f"is set by {OWNED_ENV[variable.name]}: remove it here")
            elif variable.name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN") and token:
                message = "is set by spec.model.source.huggingFace.tokenSecretRef too: keep one of the two"
                yield Fault(where, variable.name, message)
    if not disaggregated(spec):
        return
    for role, _, args in _roles(spec):
        for variable in merged_env(spec, role).values():
            if variable.name != "PYTORCH_CUDA_ALLOC_CONF" or "enable-cumem-allocator" in args:
                continue
            if "expandable_segments:True" in (variable.value or ""):
                message = (
                    "expandable_segments:True moves memory that NIXL has registered, and vLLM doesn't start with it: "
                    "remove it, or add the flag enable-cumem-allocator"
                )
                yield Fault(f"spec.topology.{role}: env PYTORCH_CUDA_ALLOC_CONF", variable.value or "", message)


def _parallelism(spec: SpecDecodeDeploymentSpec) -> Iterator[Fault]:
    if not disaggregated(spec):
        return
    push = spec.topology.kv_transfer.connector == "NixlPush"
    for role, part, args in _roles(spec):
        pipeline = part.parallelism.pipeline
        if role == "decode" and pipeline > 1:
            yield Fault(
                "spec.topology.decode.parallelism.pipeline",
                str(pipeline),
                "NIXL takes no pipeline parallelism on decode: write 1 and raise tensor instead",
            )
        prefill_context = number(args.get("prefill-context-parallel-size", "1")) or 1
        if role == "decode" and prefill_context > 1:
            path = _args_path(spec, role, "prefill-context-parallel-size")
            yield Fault(path, str(prefill_context), "only prefill can do this with NIXL: remove it from decode")
        context = number(args.get("decode-context-parallel-size", "1")) or 1
        widest = max(part.parallelism.tensor, prefill_context)
        if context > 1 and (push or context != widest):
            path = _args_path(spec, role, "decode-context-parallel-size")
            may = "1 with NixlPush" if push else f"1 or {widest} (the larger of tensor and prefill-context size)"
            yield Fault(path, str(context), f"must be {may}: change it")


def _both_roles(spec: SpecDecodeDeploymentSpec) -> Iterator[Fault]:
    """What prefill and decode must have in common."""
    if not disaggregated(spec):
        return
    prefill, decode = merged_args(spec, "prefill"), merged_args(spec, "decode")
    for flag in HANDSHAKE_FLAGS:
        p, d = (args.get(flag, "auto") for args in (prefill, decode))
        if p != d:
            shown = f"{p or 'set'} and {d or 'set'}"
            message = "prefill and decode must agree in it for KV to move: set it once, in spec.engine.args"
            yield Fault(f"spec.topology: {flag}", shown, message)


def _transfer(spec: SpecDecodeDeploymentSpec) -> Iterator[Fault]:
    extra = spec.topology.kv_transfer.extra_config
    path = "spec.topology.kvTransfer.extraConfig"
    if not disaggregated(spec):
        if extra:
            yield _warning(path, "", "has no effect without spec.topology.prefill: remove it", "NoEffect")
        return
    if BACKOFF_KEY in extra:
        message = "is set by spec.speculation.lookaheadBackoff: remove it here"
        yield Fault(f"{path}.{BACKOFF_KEY}", str(extra[BACKOFF_KEY]), message)
    if extra.get("enforce_handshake_compat") is False:
        message = (
            "turns off the only check that prefill and decode run the same model: a mismatch then gives wrong answers "
            "or drafts that are never accepted; remove it"
        )
        yield _warning(f"{path}.enforce_handshake_compat", "false", message, "HandshakeUnchecked")
    prefill = spec.topology.prefill
    if prefill is not None and seconds(prefill.drain) < MIN_PREFILL_DRAIN:
        message = f"decode may come to read for {MIN_PREFILL_DRAIN:g}s after prefill is done: write 30s or more"
        yield _warning("spec.topology.prefill.drain", prefill.drain, message, "DrainTooShort")


def _tunings(spec: SpecDecodeDeploymentSpec) -> Iterator[Fault]:
    speculation, is_patched = spec.speculation, patched(spec)
    host_copy, backoff = speculation.host_copy, speculation.lookahead_backoff
    if spec.engine.device == "Cpu":
        for field, value in (("hostCopy", host_copy), ("topKSharing", speculation.top_k_sharing)):
            if value != "Auto":
                message = "vLLM on a CPU can't do it, so no Pod would ever be as it was told: write Auto"
                yield Fault(f"spec.speculation.{field}", value, message)
    elif host_copy == "Never" and not is_patched:
        message = (
            "needs the project's patched image: an unpatched one copies whenever a request needs the ids; write Auto, "
            "or set spec.engine.image (and spec.engine.patched: Patched, if its tag doesn't say so)"
        )
        yield Fault("spec.speculation.hostCopy", host_copy, message)
    elif host_copy == "Never":
        message = "requests with structured output are answered 400 with it; write Auto if clients send any"
        yield _warning("spec.speculation.hostCopy", host_copy, message, "StructuredOutputRefused")
    elif host_copy == "Always" and not is_patched:
        message = "can't be set on an unpatched image and is not honoured: use a patched image, or write Auto"
        yield _warning("spec.speculation.hostCopy", host_copy, message, "TuningNotHonoured")
    if speculation.top_k_sharing == "Enabled" and speculation.depth == 1:
        message = "later draft steps share the first one's top-k, and depth 1 has no later step: raise depth, or Auto"
        yield _warning("spec.speculation.topKSharing", "Enabled", message, "NoEffect")
    if not disaggregated(spec):
        if backoff != "Auto":
            message = "has no effect without spec.topology.prefill: write Auto"
            yield _warning("spec.speculation.lookaheadBackoff", backoff, message, "NoEffect")
    elif backoff == "Disabled":
        message = (
            "leaves wrong entries in the drafter's KV cache and is for measurements only; write Auto"
            if is_patched
            else "can't be set on an unpatched image and is not honoured: use a patched image, or write Auto"
        )
        reason = "DrafterPolluted" if is_patched else "TuningNotHonoured"
        yield _warning("spec.speculation.lookaheadBackoff", backoff, message, reason)
    elif MULTI_MODULE_NAMES.search(spec.model.name) and (not is_patched or backoff == "Upstream"):
        yield _multi_module(speculation.depth)


def _multi_module(depth: int) -> Fault:
    effect = "at depth 2 it has no effect" if depth == 2 else "at depth 3 and more it keeps prefill's wrong guesses"
    message = (
        f"this model drafts with several MTP modules, and vLLM's own lookahead backoff is half a cure for them under "
        f"prefill/decode ({effect}): use a patched image with lookaheadBackoff Auto"
    )
    return _warning("spec.speculation.depth", str(depth), message, "DrafterPolluted")


def _logits_processors(spec: SpecDecodeDeploymentSpec) -> Iterator[Fault]:
    for role, _, args in _roles(spec):
        if "logits-processors" in args:
            path = _args_path(spec, role, "logits-processors")
            message = "vLLM's V1 model runner refuses custom logits processors with speculation: remove it"
            yield _warning(path, args["logits-processors"], message, "LogitsProcessors")


def _model(spec: SpecDecodeDeploymentSpec) -> Iterator[Fault]:
    volume = spec.model.source.volume
    if volume is None:
        return
    if ".." in volume.path.split("/"):
        yield Fault("spec.model.source.volume.path", volume.path, "leads out of the volume: write it without ..")
    if spec.model.revision:
        message = "has no effect on a model from a volume: remove it, and name the folder after it"
        yield _warning("spec.model.revision", spec.model.revision, message, "NoEffect")


def _resources(spec: SpecDecodeDeploymentSpec) -> Iterator[Fault]:
    resource = spec.engine.accelerator_resource
    for role, part, _ in _roles(spec):
        wanted = 0 if spec.engine.device == "Cpu" else part.parallelism.accelerators
        path = f"spec.topology.{role}"
        sources: dict[str, Any] = {
            f"{path}.resources": part.resources,
            f"{path}.podTemplate: resources of container vllm": own_container(part.pod_template, "vllm").get(
                "resources"
            ),
        }
        for where, resources in sources.items():
            for kind in ("limits", "requests"):
                listed = resources.get(kind) if isinstance(resources, Mapping) else None
                asked = listed.get(resource) if isinstance(listed, Mapping) else None
                if asked is not None and str(asked) != str(wanted):
                    message = (
                        f"contradicts {path}.parallelism, which needs {wanted} (tensor x pipeline x data): remove it, "
                        "or change parallelism"
                        if wanted
                        else "contradicts spec.engine.device Cpu: remove it, or write Cuda"
                    )
                    yield Fault(f"{where}.{kind}.{resource}", str(asked), message)


def _grace(spec: SpecDecodeDeploymentSpec) -> Iterator[Fault]:
    for role, part, _ in _roles(spec):
        body = part.pod_template.get("spec")
        grace = body.get("terminationGracePeriodSeconds") if isinstance(body, Mapping) else None
        if isinstance(grace, int) and grace <= seconds(part.drain) + 5:
            path = f"spec.topology.{role}.podTemplate.spec.terminationGracePeriodSeconds"
            message = f"ends before the drain does ({part.drain} after 5s): remove it, or shorten topology.{role}.drain"
            yield Fault(path, str(grace), message)


_CHECKS: Final[tuple[Callable[[SpecDecodeDeploymentSpec], Iterator[Fault]], ...]] = (
    _version,
    _flags,
    _batch_tokens,
    _block_size,
    _capture_sizes,
    _environment,
    _parallelism,
    _both_roles,
    _transfer,
    _tunings,
    _logits_processors,
    _model,
    _resources,
    _grace,
    check_templates,
)
