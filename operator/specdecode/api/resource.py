"""The resource itself."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from .base import ApiModel, rules
from .names import API_VERSION, KIND
from .rollout import GuardSpec, RolloutSpec
from .spec import EngineSpec, ModelSpec, SpeculationSpec
from .status import SpecDecodeDeploymentStatus
from .topology import TopologySpec, TrafficSpec

NAME_PATTERN = "^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$"


class SpecDecodeDeploymentSpec(ApiModel):
    """What is to be served, how it drafts, and how a change is rolled out."""

    model_config = rules(
        (
            "!has(self.engine.cudagraphCaptureSizes) || self.engine.cudagraphCaptureSizes.size() == 0 || "
            "self.engine.cudagraphCaptureSizes.exists(s, s % (self.speculation.depth + 1) == 0)",
            "engine.cudagraphCaptureSizes has no multiple of speculation.depth + 1, the tokens of one decode step: "
            "add one, or remove the list",
        ),
        (
            "!has(self.speculation.depthByBatch) || self.speculation.depthByBatch.size() == 0 || "
            "(self.topology.decode.parallelism.data == 1 && (!has(self.topology.prefill) || "
            "self.topology.prefill.parallelism.data == 1))",
            "speculation.depthByBatch doesn't work with data parallelism (vLLM switches it off): remove it, or set "
            "topology.<role>.parallelism.data to 1",
        ),
    )
    model: ModelSpec = Field(description="The model.")
    speculation: SpeculationSpec = Field(description="Multi-token prediction and its tunings.")
    engine: EngineSpec = Field(description="The vLLM image and its flags.")
    topology: TopologySpec = Field(description="Prefill, decode and routers.")
    traffic: TrafficSpec = Field(default_factory=TrafficSpec, description="How traffic reaches the revisions.")
    rollout: RolloutSpec = Field(default_factory=RolloutSpec, description="How a change is rolled out.")
    guard: GuardSpec = Field(default_factory=GuardSpec, description="What watches the serving revision.")


class ResourceMetadata(ApiModel):
    """The part of the metadata that deciding needs."""

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    annotations: dict[str, str] = Field(default_factory=dict)
    deletion_timestamp: str | None = None


class SpecDecodeDeployment(ApiModel):
    """A model served with multi-token prediction, prefill and decode apart, and changed by canaries that are judged
    by their acceptance length."""

    model_config = rules(
        (
            f"self.metadata.name.matches('{NAME_PATTERN}')",
            "metadata.name must be at most 40 characters of a-z, 0-9 and -, begin with a letter and not end with -, "
            "because Services and Pods are named after it: choose another name",
        )
    )
    api_version: Literal["specdecode.dev/v1alpha1"] = API_VERSION
    kind: Literal["SpecDecodeDeployment"] = KIND
    metadata: ResourceMetadata
    spec: SpecDecodeDeploymentSpec
    status: SpecDecodeDeploymentStatus = Field(default_factory=SpecDecodeDeploymentStatus)

    @classmethod
    def parse(cls, stored: dict[str, Any]) -> SpecDecodeDeployment:
        """The resource from a stored object.

        Raises:
            pydantic.ValidationError: the object doesn't have the shape that its CRD asks for.
        """
        return cls.model_validate(stored)
