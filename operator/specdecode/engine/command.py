"""A spec compiled to what one engine is started with: command line, configurations and environment.

``SpeculativeConfig`` and ``KVTransferConfig`` are vLLM's; their keys are read in its ``config/speculative.py`` and
``config/kv_transfer.py``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from specdecode.api import SpecDecodeDeploymentSpec, seconds
from specdecode.api.names import ENGINE_PORT, SIDE_CHANNEL_PORT, EngineRole
from specdecode.api.spec import EnvVar
from specdecode.api.topology import RoleSpec

from .versions import BACKOFF_KEY, HOST_COPY_KEY, patched, version_of

PROGRAM: Final = ("vllm", "serve")
MODEL_MOUNT: Final = "/models"
CACHE_MOUNT: Final = "/cache"

_JSON_ARRAYS: Final = ("allowed-headers", "allowed-methods", "allowed-origins")
_REPEATED: Final = ("middleware",)
_BACKOFF: Final = {"Auto": "auto", "Upstream": "upstream", "Disabled": "off"}


def role_spec(spec: SpecDecodeDeploymentSpec, role: EngineRole) -> RoleSpec:
    """The role's part of the topology.

    Raises:
        KeyError: the topology has no such role.
    """
    return spec.topology.roles[role]


def disaggregated(spec: SpecDecodeDeploymentSpec) -> bool:
    """Whether prefill and decode are apart."""
    return spec.topology.prefill is not None


def model_argument(spec: SpecDecodeDeploymentSpec) -> str:
    """What ``vllm serve`` is told to load: a name on a hub, or a folder of the mounted volume."""
    volume = spec.model.source.volume
    if volume is None:
        return spec.model.name
    return f"{MODEL_MOUNT}/{volume.path.strip('/')}".rstrip("/")


def speculative_config(spec: SpecDecodeDeploymentSpec, role: EngineRole) -> dict[str, Any]:
    """vLLM's ``SpeculativeConfig``. The depth is the same for both roles; the schedule is decode's alone, where it
    touches neither the handshake nor the KV layout. Above the last range vLLM carries its depth on."""
    config: dict[str, Any] = {"method": spec.speculation.method, "num_speculative_tokens": spec.speculation.depth}
    if spec.speculation.top_k_sharing != "Auto":
        config["index_share_for_mtp_iteration"] = spec.speculation.top_k_sharing == "Enabled"
    if role == "decode" and spec.speculation.depth_by_batch:
        first, schedule = 1, []
        for entry in spec.speculation.depth_by_batch:
            schedule.append([first, entry.up_to, entry.depth])
            first = entry.up_to + 1
        config["num_speculative_tokens_per_batch_size"] = schedule
    return config


def kv_transfer_config(spec: SpecDecodeDeploymentSpec, role: EngineRole) -> dict[str, Any] | None:
    """vLLM's ``KVTransferConfig``; None in aggregated serving. Both roles get the same extra configuration, so that
    they hand over by the same rule."""
    if not disaggregated(spec):
        return None
    transfer = spec.topology.kv_transfer
    config: dict[str, Any] = {
        "kv_connector": version_of(spec).table.connectors[transfer.connector],
        "kv_role": "kv_producer" if role == "prefill" else "kv_consumer",
    }
    if role == "decode":
        config["kv_load_failure_policy"] = transfer.load_failure_policy.lower()
    if spec.engine.device == "Cpu":
        config["kv_buffer_device"] = "cpu"
    extra = dict(transfer.extra_config)
    if patched(spec):
        extra[BACKOFF_KEY] = _BACKOFF[spec.speculation.lookahead_backoff]
    if extra:
        config["kv_connector_extra_config"] = extra
    return config


def additional_config(spec: SpecDecodeDeploymentSpec) -> dict[str, Any]:
    """vLLM's ``additional_config``: what only the patched engine reads."""
    return {HOST_COPY_KEY: spec.speculation.host_copy.lower()} if patched(spec) else {}


def merged_args(spec: SpecDecodeDeploymentSpec, role: EngineRole) -> dict[str, str]:
    """``engine.args`` with the role's over them. A role's ``x`` also replaces ``no-x``, and the other way round."""
    merged = dict(spec.engine.args)
    for flag, value in role_spec(spec, role).args.items():
        merged.pop(flag.removeprefix("no-") if flag.startswith("no-") else f"no-{flag}", None)
        merged[flag] = value
    return merged


def merged_env(spec: SpecDecodeDeploymentSpec, role: EngineRole) -> dict[str, EnvVar]:
    """``engine.env`` with the role's over it, by name."""
    return {variable.name: variable for variable in (*spec.engine.env, *role_spec(spec, role).env)}


def flag_words(flag: str, value: str) -> list[str]:
    """One flag as words of a command line: "" is a bare flag, a JSON array is several values.

    Two kinds of vLLM's flags want an array otherwise: as JSON, or as one flag for each value.
    """
    if not value:
        return [f"--{flag}"]
    if value.lstrip().startswith("[") and flag not in _JSON_ARRAYS:
        try:
            several = json.loads(value)
        except ValueError:
            several = None
        if isinstance(several, list) and several:
            values = [v if isinstance(v, str) else json.dumps(v) for v in several]
            return [w for v in values for w in (f"--{flag}", v)] if flag in _REPEATED else [f"--{flag}", *values]
    # argparse would take a value with a dash in front for a flag.
    return [f"--{flag}={value}"] if value.startswith("-") else [f"--{flag}", value]


def command(spec: SpecDecodeDeploymentSpec, role: EngineRole) -> list[str]:
    """The whole command line of one engine, ``vllm serve`` first; the same spec always gives the same words."""
    role_part = role_spec(spec, role)
    parallelism = role_part.parallelism
    words = [
        *PROGRAM,
        model_argument(spec),
        "--host",
        "0.0.0.0",
        "--port",
        str(ENGINE_PORT),
        "--served-model-name",
        spec.model.served_name or spec.model.name,
        "--shutdown-timeout",
        str(math.ceil(seconds(role_part.drain))),
    ]
    if spec.model.revision and spec.model.source.volume is None:
        words += ["--revision", spec.model.revision]
    words += ["--tensor-parallel-size", str(parallelism.tensor)]
    if parallelism.pipeline > 1:
        words += ["--pipeline-parallel-size", str(parallelism.pipeline)]
    if parallelism.data > 1:
        words += ["--data-parallel-size", str(parallelism.data)]
    if parallelism.expert:
        words += ["--enable-expert-parallel"]
    words += ["--speculative-config", _compact(speculative_config(spec, role))]
    transfer = kv_transfer_config(spec, role)
    if transfer is not None:
        words += ["--kv-transfer-config", _compact(transfer)]
    if additional := additional_config(spec):
        words += ["--additional-config", _compact(additional)]
    if spec.engine.cudagraph_capture_sizes:
        words += ["--cudagraph-capture-sizes", *map(str, spec.engine.cudagraph_capture_sizes)]
    for flag, value in sorted(merged_args(spec, role).items()):
        words += flag_words(flag, value)
    return words


def environment(spec: SpecDecodeDeploymentSpec, role: EngineRole) -> list[dict[str, Any]]:
    """Environment of one engine's container, as in a Pod; a person's variables stand over the operator's defaults.

    The process runs as a user without a home or a name, on a read-only root: its caches go to one mounted folder,
    and USER stands in for the passwd entry that PyTorch looks up.
    """
    found: dict[str, dict[str, Any]] = {}

    def put(name: str, value: str) -> None:
        found[name] = {"name": name, "value": value}

    put("HOME", CACHE_MOUNT)
    put("USER", "vllm")
    put("HF_HOME", f"{CACHE_MOUNT}/huggingface")
    put("VLLM_CACHE_ROOT", f"{CACHE_MOUNT}/vllm")
    put("VLLM_NO_USAGE_STATS", "1")
    if spec.model.source.volume is not None:
        put("HF_HUB_OFFLINE", "1")
        put("TRANSFORMERS_OFFLINE", "1")
    hub = spec.model.source.hugging_face
    if hub is not None and hub.token_secret_ref is not None:
        found["HF_TOKEN"] = secret_variable("HF_TOKEN", hub.token_secret_ref.name, hub.token_secret_ref.key)
    for variable in merged_env(spec, role).values():
        found[variable.name] = variable.model_dump(by_alias=True, exclude_none=True, exclude_defaults=True)
    if spec.engine.api_key_secret_ref is not None:
        key = spec.engine.api_key_secret_ref
        found["VLLM_API_KEY"] = secret_variable("VLLM_API_KEY", key.name, key.key)
    if disaggregated(spec):
        # NIXL advertises this address to the other role; its default is localhost.
        name = "VLLM_NIXL_SIDE_CHANNEL_HOST"
        found[name] = {"name": name, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
        put("VLLM_NIXL_SIDE_CHANNEL_PORT", str(SIDE_CHANNEL_PORT))
    return list(found.values())


def side_channel_ports(spec: SpecDecodeDeploymentSpec, role: EngineRole) -> range:
    """NIXL's side-channel ports of one Pod: one for each data-parallel engine; none in aggregated serving."""
    engines = role_spec(spec, role).parallelism.data if disaggregated(spec) else 0
    return range(SIDE_CHANNEL_PORT, SIDE_CHANNEL_PORT + engines)


def secret_variable(name: str, secret: str, key: str) -> dict[str, Any]:
    """An environment variable that the kubelet reads from a Secret."""
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def _compact(config: Mapping[str, Any]) -> str:
    return json.dumps(config, separators=(",", ":"), sort_keys=True)
