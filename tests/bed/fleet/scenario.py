"""Scenario files: what traffic comes, and how the Pods of each revision behave.

A scenario is YAML. `traffic` says what comes to every deployment, `behaviour` how every Pod behaves, and each of
`rules` changes some fields of `behaviour` for the Pods that it matches; a later rule wins over an earlier one:

    traffic: {rate: 20, life: {median: 4, sigma: 0.6}}
    behaviour: {acceptance: [0.9, 0.85, 0.75]}
    rules:
      - match: {revision: 2}                # every Pod of revision 2 of any deployment
        acceptance: [0.08, 0.01, 0.01]
      - match: {depth: 8, after: 60}        # depth 8, from 60 s after the revision's first counted draft
        failing: 0.2

All fields are described on the classes below; a field that isn't known is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator
from pydantic.alias_generators import to_camel

MAX_DEPTH: Final = 16
Share = Annotated[float, Field(ge=0, le=1)]


class ScenarioError(ValueError):
    """A scenario that can't be read; the message names the field, the value and what would do."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


class Life(_Model):
    """How long a request runs on a decode Pod, in seconds: log-normal."""

    median: float = Field(default=4.0, gt=0)
    sigma: float = Field(default=0.6, ge=0, description="Standard deviation of the logarithm.")


class Traffic(_Model):
    """What comes to a deployment."""

    rate: float = Field(default=8.0, ge=0, description="Requests a second and deployment; arrivals are Poisson.")
    life: Life = Life()
    prompt_tokens: int = Field(default=512, ge=1, description="Tokens of a prompt.")
    split: Literal["request", "connection"] = Field(
        default="request",
        description="Whether each request chooses a router by itself, or each client keeps to one while it lives.",
    )
    clients: int = Field(default=8, ge=1, description="Clients, where traffic is split by connection.")


class Behaviour(_Model):
    """How the Pods of a revision behave."""

    acceptance: list[Share] = Field(
        default=[0.9, 0.85, 0.75],
        min_length=1,
        max_length=MAX_DEPTH,
        description="Accepted at position i over drafts, not rising. Beyond its end the last ratio goes on.",
    )
    concentration: float | None = Field(
        default=8.0,
        gt=0,
        description="How alike requests are: each has its own acceptance at position 1, Beta-distributed around the "
        "mean with this sum of parameters; null makes all alike.",
    )
    draft_rate: float = Field(default=20.0, gt=0, description="Drafts a second of one running request.")
    drafting: bool = Field(default=True, description="false: requests run without one draft.")
    failing: Share = Field(default=0.0, description="Share of requests that end after failAfter with status 503.")
    fail_after: float = Field(default=0.1, gt=0, description="Seconds; failing requests draft nothing.")
    failed_transfers: Share = Field(default=0.0, description="Share of requests with a failed KV transfer.")
    idle: bool = Field(default=False, description="true: no request comes to this revision's routers.")
    empty_first_draft: bool = Field(
        default=True,
        description="With prefill Pods, the first, padded step of a request counts as a draft with nothing accepted.",
    )
    page: Literal["ok", "hang", "garbage", "nan", "empty", "error", "truncated", "huge"] = Field(
        default="ok", description="What GET /metrics of an engine gives."
    )
    router_page: Literal["ok", "hang", "garbage", "nan", "empty", "error", "truncated", "huge"] = Field(
        default="ok", description="The same of a router Pod's proxy."
    )
    page_delay: float = Field(default=0.0, ge=0, description="Seconds until a page is sent.")
    reset_every: float | None = Field(
        default=None, gt=0, description="Seconds after which a Pod's counters begin at 0 again, again and again."
    )
    speculative_metrics: bool = Field(default=True, description="false: no vllm:spec_decode_* series at all.")
    info: dict[str, str] | None = Field(
        default=None, description="Labels of vllm:spec_decode_config_info; null: an image without that metric."
    )

    @model_validator(mode="after")
    def _falls(self) -> Behaviour:
        for position, (before, after) in enumerate(zip(self.acceptance, self.acceptance[1:], strict=False), start=2):
            if after > before:
                raise ValueError(
                    f"acceptance at position {position} is {after}, above {before} at the position before: "
                    "a position is only reached where the one before was accepted, so the list must not rise"
                )
        return self

    def positions(self, depth: int) -> list[float]:
        """Acceptance of each of `depth` positions: the list cut, or continued by its last ratio."""
        found = list(self.acceptance[:depth])
        last = self.acceptance[-2:]
        ratio = last[-1] / last[0] if len(last) == 2 and last[0] > 0 else 1.0
        while len(found) < depth:
            found.append(found[-1] * ratio)
        return found


@dataclass(frozen=True)
class Subject:
    """What a rule can match: a Pod template of a revision.

    Attributes:
        deployment: name of the resource.
        namespace: its namespace.
        revision: number of the revision.
        depth: `num_speculative_tokens` of its decode Pods; 0 without speculation.
        image: of its decode Pods' engine.
        args: of the same container, by flag ("--revision": "main").
        env: of the same container, by name.
    """

    deployment: str = ""
    namespace: str = ""
    revision: int = 0
    depth: int = 0
    image: str = ""
    args: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


class Match(_Model):
    """Every field that is given must hold."""

    deployment: str | None = Field(default=None, description="Name of the resource: a regular expression, all of it.")
    namespace: str | None = None
    revision: int | None = None
    revision_from: int | None = Field(default=None, description="This revision and later ones.")
    depth: int | None = Field(default=None, description="num_speculative_tokens of the decode Pods.")
    image: str | None = Field(default=None, description="A regular expression that occurs in the engine's image.")
    args: dict[str, str] = Field(default={}, description="Flags of the engine with their values.")
    env: dict[str, str] = Field(default={}, description="Environment of the engine.")
    after: float | None = Field(default=None, ge=0, description="Seconds since the revision's first counted draft.")

    def holds(self, subject: Subject, drafting_for: float | None) -> bool:
        """Whether it matches.

        Args:
            subject: the Pod template in question.
            drafting_for: seconds since the revision's first counted draft; None before it.
        """
        return (
            (self.deployment is None or re.fullmatch(self.deployment, subject.deployment) is not None)
            and (self.namespace is None or self.namespace == subject.namespace)
            and (self.revision is None or self.revision == subject.revision)
            and (self.revision_from is None or subject.revision >= self.revision_from)
            and (self.depth is None or self.depth == subject.depth)
            and (self.image is None or re.search(self.image, subject.image) is not None)
            and all(subject.args.get(flag) == value for flag, value in self.args.items())
            and all(subject.env.get(name) == value for name, value in self.env.items())
            and (self.after is None or (drafting_for is not None and drafting_for >= self.after))
        )


class Scenario(_Model):
    """A whole scenario."""

    traffic: Traffic = Traffic()
    behaviour: Behaviour = Behaviour()
    rules: list[dict[str, Any]] = []
    fail_events: list[int] = Field(
        default=[1, 20], description="The event log notes a revision's n-th failed request for these n."
    )
    gateway: bool = Field(default=True, description="Whether HTTPRoutes are answered with Accepted and ResolvedRefs.")

    _rules: list[tuple[Match, dict[str, Any]]] = PrivateAttr(default_factory=list)
    _behaviours: dict[tuple[int, ...], Behaviour] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _read_rules(self) -> Scenario:
        for given in self.rules:
            rule = {to_camel(key): value for key, value in given.items()}
            match = Match.model_validate(rule.pop("match", {}))
            self._merged([rule])
            self._rules.append((match, rule))
        return self

    def _merged(self, changes: list[dict[str, Any]]) -> Behaviour:
        found = self.behaviour.model_dump(by_alias=True)
        for change in changes:
            found |= change
        return Behaviour.model_validate(found)

    def behaviour_of(self, subject: Subject, drafting_for: float | None) -> Behaviour:
        """How the Pods of this revision behave now; arguments as in `Match.holds`."""
        held = tuple(index for index, (match, _) in enumerate(self._rules) if match.holds(subject, drafting_for))
        if held not in self._behaviours:
            self._behaviours[held] = self._merged([self._rules[index][1] for index in held])
        return self._behaviours[held]


def parse(text: str, where: str = "scenario") -> Scenario:
    """A scenario from YAML.

    Raises:
        ScenarioError: it isn't one.
    """
    try:
        return Scenario.model_validate(yaml.safe_load(text) or {})
    except yaml.YAMLError as error:
        raise ScenarioError(f"{where} is no YAML: {error}") from None
    except ValidationError as error:
        faults = [
            f"{'.'.join(str(part) for part in fault['loc']) or 'rules'}: {fault['msg']}, got {fault['input']!r}"
            for fault in error.errors()
        ]
        raise ScenarioError(f"{where}: " + "; ".join(faults)) from None


def load(path: Path) -> Scenario:
    """A scenario from a file; raises ScenarioError."""
    try:
        return parse(path.read_text(), str(path))
    except OSError as error:
        raise ScenarioError(
            f"{path} can't be read: {error.strerror}; the bed's own are in tests/bed/scenarios/"
        ) from None


def flags(arguments: list[str]) -> dict[str, str]:
    """A command line's long flags with their values: `--a b`, `--a=b`, and "" for a bare flag."""
    found: dict[str, str] = {}
    name = ""
    for argument in arguments:
        if argument.startswith("--"):
            name, equals, value = argument.partition("=")
            found[name] = value
            if equals:
                name = ""
        elif name:
            found[name] = argument
            name = ""
    return found


def depth_of(arguments: Mapping[str, str]) -> int:
    """`num_speculative_tokens` of vLLM's --speculative-config; 0 without one."""
    try:
        return int(json.loads(arguments.get("--speculative-config") or "{}").get("num_speculative_tokens", 0))
    except (ValueError, AttributeError):
        return 0
