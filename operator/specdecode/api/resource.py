"""The resource itself."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from . import checks
from .base import ApiModel, rules
from .rollout import GuardSpec, RolloutSpec
from .spec import EngineSpec, ModelSpec, SpeculationSpec
from .status import SpecDecodeDeploymentStatus
from .topology import TopologySpec, TrafficSpec


class SpecDecodeDeploymentSpec(ApiModel):
    """What is to be served, how it drafts, and how a change is rolled out."""

    model_config = rules(checks.CAPTURE_SIZES, checks.DEPTH_BY_BATCH_ALONE)

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
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None


class SpecDecodeDeployment(ApiModel):
    """A model served with multi-token prediction, prefill and decode apart, and changed by canaries that are judged
    by their acceptance length."""

    model_config = rules(checks.NAME)

    api_version: Literal["specdecode.dev/v1alpha1"] = "specdecode.dev/v1alpha1"
    kind: Literal["SpecDecodeDeployment"] = "SpecDecodeDeployment"
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
