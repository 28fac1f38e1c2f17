"""Topology: prefill, decode, the router between clients and them, and how KV moves."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field

from . import checks
from .base import ApiModel, Duration, free_form, listed_by, rules
from .spec import Args, EnvVar

MOST_REPLICAS: Final = 64
"""Pods of one role of a revision."""


class Parallelism(ApiModel):
    """How one replica spreads over accelerators. All sizes are numbers of accelerators or engines."""

    tensor: int = Field(default=1, ge=1, le=64, description="Tensor-parallel size.")
    pipeline: int = Field(default=1, ge=1, le=64, description="Pipeline-parallel size.")
    data: int = Field(default=1, ge=1, le=64, description="Data-parallel engines in one Pod.")
    expert: bool = Field(default=False, description="Expert parallelism over the tensor and data ranks.")

    @property
    def accelerators(self) -> int:
        """Accelerators of one Pod."""
        return self.tensor * self.pipeline * self.data


class RoleSpec(ApiModel):
    """One role's Pods."""

    model_config = rules(checks.REPLICAS_KNOWN, checks.REPLICAS_BOUNDED)

    replicas: int | None = Field(
        default=None,
        ge=1,
        le=MOST_REPLICAS,
        description="Pods of this role. Absent: an autoscaler's; then set maxReplicas.",
    )
    max_replicas: int | None = Field(
        default=None,
        ge=1,
        le=MOST_REPLICAS,
        description="With an autoscaler: the most Pods it may set. Routers list that many from the start.",
    )
    parallelism: Parallelism = Field(default_factory=Parallelism, description="Accelerators of one Pod.")
    resources: dict[str, Any] = free_form("Requests and limits of the engine container, as in a Pod.")
    args: Args = Field(default_factory=dict, description="vLLM flags of this role; they override engine.args.")
    env: list[EnvVar] = Field(
        default_factory=list,
        max_length=64,
        description="Environment of this role; it overrides engine.env by name.",
        json_schema_extra=listed_by("name"),
    )
    drain: Duration = Field(
        default="120s",
        description="Time that a terminating Pod has to finish its requests. The grace period is longer by the "
        "preStop delay and a reserve.",
    )
    startup_timeout: Duration = Field(
        default="30m", description="Time that a Pod may take to load the model before it counts as failed."
    )
    pod_template: dict[str, Any] = free_form(
        "Merged over the operator's Pod template: metadata labels and annotations and the Pod's spec, containers by "
        "name (the engine's is `vllm`). Owned flags, selectors' labels and the Pod's name can't be changed."
    )

    @property
    def autoscaled(self) -> bool:
        """Whether somebody else owns the number of replicas."""
        return self.replicas is None


class RouterSpec(ApiModel):
    """The routers of a revision: vllm-router behind a proxy, both in one Pod."""

    replicas: int = Field(default=2, ge=1, le=16, description="Router Pods of the serving revision.")
    image: str = Field(
        default="",
        max_length=512,
        description="Image with vllm-router and the proxy; empty: the operator's own default.",
    )
    policy: Literal["round_robin", "cache_aware", "power_of_two", "random", "consistent_hash"] = Field(
        default="cache_aware", description="vllm-router's load-balancing policy."
    )
    request_timeout: Duration = Field(
        default="30m", description="Longest generation; a stream is cut after it. Draining lasts as long at most."
    )
    resources: dict[str, Any] = free_form("Requests and limits of the router container, as in a Pod.")
    pod_template: dict[str, Any] = free_form("Merged over the operator's Pod template, as for the roles.")


class KvTransferSpec(ApiModel):
    """How KV moves from prefill to decode."""

    connector: Literal["Nixl", "NixlPush"] = Field(
        default="Nixl", description="vLLM's connector. Only NIXL leaves the last prompt tokens to decode."
    )
    load_failure_policy: Literal["Fail", "Recompute"] = Field(
        default="Fail",
        description="What decode does when a transfer fails. Recompute answers the request all the same and so "
        "hides pairs that can't shake hands.",
    )
    extra_config: dict[str, Any] = free_form("kv_connector_extra_config, such as backends; the operator adds its own.")


class TopologySpec(ApiModel):
    """Prefill/decode (P/D) topology; without prefill, decode Pods serve alone."""

    model_config = rules(checks.TENSOR_SIZES)

    prefill: RoleSpec | None = Field(default=None, description="Prefill Pods; absent: aggregated serving.")
    decode: RoleSpec = Field(description="Decode Pods, or all Pods in aggregated serving.")
    kv_transfer: KvTransferSpec = Field(default_factory=KvTransferSpec, description="How KV moves.")
    router: RouterSpec = Field(default_factory=RouterSpec, description="Routers before the Pods.")

    @property
    def roles(self) -> dict[Literal["prefill", "decode"], RoleSpec]:
        """The engine roles that this topology has."""
        both: dict[Literal["prefill", "decode"], RoleSpec] = {}
        if self.prefill is not None:
            both["prefill"] = self.prefill
        both["decode"] = self.decode
        return both


class ParentRef(ApiModel):
    """A Gateway that the HTTPRoute attaches to."""

    name: str = Field(min_length=1, max_length=253, description="Name of the Gateway.")
    namespace: str | None = Field(default=None, max_length=63, description="Its namespace, if another.")
    section_name: str | None = Field(default=None, max_length=253, description="Its listener.")
    port: int | None = Field(default=None, ge=1, le=65535, description="Its listener's port.")


class GatewaySpec(ApiModel):
    """Weights by an HTTPRoute, request by request. The production entry."""

    parent_refs: list[ParentRef] = Field(min_length=1, max_length=8, description="Gateways to attach to.")
    hostnames: list[Annotated[str, Field(max_length=253)]] = Field(
        default_factory=list, max_length=16, description="Host names that the route matches; empty: all."
    )


class TrafficSpec(ApiModel):
    """How traffic reaches the revisions."""

    gateway: GatewaySpec | None = Field(
        default=None, description="Absent: weights by the number of routers behind one Service, split by connection."
    )
