"""Model, speculation and engine: what is served, how it drafts, and what serves it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from . import checks
from .base import ApiModel, free_form, listed_by, rules, validations

Args = Annotated[
    dict[Annotated[str, Field(max_length=checks.FLAG_LENGTH)], Annotated[str, Field(max_length=4096)]],
    Field(max_length=64, json_schema_extra=validations(checks.FLAG_NAMES, checks.OWNED)),
]


class SecretKeyRef(ApiModel):
    """A key of a Secret in the resource's namespace. The operator never reads it; Pods do."""

    name: str = Field(min_length=1, max_length=253, description="Name of the Secret.")
    key: str = Field(min_length=1, max_length=253, description="Key within the Secret.")


class HuggingFaceSource(ApiModel):
    """The model is loaded from a Hugging Face hub under `model.name`."""

    token_secret_ref: SecretKeyRef | None = Field(
        default=None, description="Secret key that holds the hub's token, for models that need one."
    )


class VolumeSource(ApiModel):
    """The model lies on a volume."""

    claim_name: str = Field(
        min_length=1, max_length=253, description="PersistentVolumeClaim that every Pod mounts read-only."
    )
    path: str = Field(
        default="", max_length=512, description="Folder of the model within the volume; empty: the volume's root."
    )


class ModelSource(ApiModel):
    """Where the weights come from: exactly one of the fields, or none for a public hub model."""

    model_config = rules(checks.ONE_SOURCE)

    hugging_face: HuggingFaceSource | None = Field(default=None, description="A Hugging Face hub.")
    volume: VolumeSource | None = Field(default=None, description="A volume that already holds the weights.")


class ModelSpec(ApiModel):
    """The model that is served."""

    name: str = Field(
        min_length=1,
        max_length=512,
        description="Name on the hub, or of the folder on the volume; prefill and decode must see the same string.",
    )
    revision: str = Field(
        default="",
        max_length=128,
        description="Commit, tag or branch on the hub. A commit is immutable; anything else is named in the "
        "condition InputsMutable, because weights may change under a running revision.",
    )
    served_name: str = Field(
        default="", max_length=253, description="Name that clients put into a request; empty: model.name."
    )
    source: ModelSource = Field(default_factory=ModelSource, description="Where the weights come from.")


class DepthRange(ApiModel):
    """Depth for a range of batch sizes."""

    up_to: int = Field(ge=1, le=65536, description="Largest number of running requests of this range.")
    depth: int = Field(ge=1, le=16, description="Draft tokens a step in this range; at most speculation.depth.")


class SpeculationSpec(ApiModel):
    """Multi-token prediction (MTP) and its tunings. One depth holds for prefill and decode alike:
    vLLM's handshake doesn't see a mismatch, which kills the decode engine or corrupts answers."""

    model_config = rules(checks.DEPTH_BY_BATCH_BELOW_DEPTH, checks.DEPTH_BY_BATCH_RISES)

    method: Literal["mtp"] = Field(
        default="mtp",
        description="Speculative method. Only mtp has the tunings that this operator sets.",
        json_schema_extra=validations(checks.METHOD_MTP),
    )
    depth: int = Field(
        ge=1,
        le=16,
        description="Draft tokens a step (num_speculative_tokens), for prefill and decode alike, 1 to 16.",
        json_schema_extra=validations(checks.DEPTH),
    )
    depth_by_batch: list[DepthRange] = Field(
        default_factory=list,
        max_length=16,
        description="Depth by number of running requests, for decode only; above the last upTo its depth holds on. "
        "Not with data parallelism, where vLLM switches it off.",
    )
    lookahead_backoff: Literal["Auto", "Upstream", "Disabled"] = Field(
        default="Auto",
        description="What prefill leaves to decode under P/D. Auto: late hand-over where the image has it, else "
        "upstream's. Disabled pollutes the drafter's KV cache and is there for measurements only.",
    )
    host_copy: Literal["Auto", "Always", "Never"] = Field(
        default="Auto",
        description="Copy of draft tokens to the host each step. Auto: only for batches that need it (structured "
        "output). Never refuses such requests; Always is a baseline to measure against.",
    )
    top_k_sharing: Literal["Auto", "Enabled", "Disabled"] = Field(
        default="Auto",
        description="Later draft steps reuse the first one's top-k indices, for models with sparse attention. "
        "Auto: the checkpoint's own value.",
    )


class EnvVar(ApiModel):
    """An environment variable, as in a Pod."""

    model_config = rules(checks.ENV_VALUE_ONCE)

    name: str = Field(min_length=1, max_length=253, description="Name of the variable.")
    value: str | None = Field(default=None, max_length=32768, description="Its value.")
    value_from: dict[str, Any] = free_form("Source of its value, as in a Pod (secretKeyRef, fieldRef, ...).")


class EngineSpec(ApiModel):
    """The image and how vLLM is started in it."""

    image: str = Field(
        min_length=1,
        max_length=512,
        description="vLLM image. The project's patched image makes every tuning settable and visible; an unpatched "
        "one works with what it has. A digest is immutable; a tag is named in the condition InputsMutable.",
    )
    version: str = Field(
        default="",
        pattern=r"^([0-9]+\.[0-9]+(\.[0-9]+)?)?$",
        max_length=16,
        description="vLLM version in the image, such as 0.33.0; empty: read from the image's tag.",
    )
    patched: Literal["Auto", "Patched", "Unpatched"] = Field(
        default="Auto",
        description="Whether the image carries the project's patches. Auto: read from the image's name and tag "
        "(a tag with the suffix -specdecode); the Pods' own info metric is checked either way.",
    )
    device: Literal["Cuda", "Cpu"] = Field(
        default="Cuda", description="What the image runs on. Cpu asks for no accelerator."
    )
    accelerator_resource: str = Field(
        default="nvidia.com/gpu",
        min_length=1,
        max_length=253,
        description="Extended resource that stands for one accelerator; each Pod asks for tensor x pipeline x data.",
    )
    args: Args = Field(
        default_factory=dict,
        description='vLLM flags of both roles: long name in kebab-case without dashes to value. "" is a bare flag; '
        "a JSON array is several values. Flags that the operator owns are refused.",
    )
    env: list[EnvVar] = Field(
        default_factory=list,
        max_length=64,
        description="Environment of both roles.",
        json_schema_extra=listed_by("name"),
    )
    cudagraph_capture_sizes: list[Annotated[int, Field(ge=1, le=65536)]] = Field(
        default_factory=list,
        max_length=128,
        description="Batch sizes for which CUDA graphs are captured; at least one must be a multiple of depth + 1.",
    )
    api_key_secret_ref: SecretKeyRef | None = Field(
        default=None, description="Key that engines ask for and routers present; clients never see it."
    )
    image_pull_secrets: list[Annotated[str, Field(max_length=253)]] = Field(
        default_factory=list, max_length=8, description="Names of Secrets for pulling the images."
    )
    service_account_name: str = Field(
        default="", max_length=253, description="ServiceAccount of the serving Pods; its token is not mounted."
    )
