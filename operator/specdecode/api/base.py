"""What every model of the resource shares: camelCase names, CEL rules, durations and percentages.

Stored objects are parsed leniently: a field that a newer operator wrote is ignored, not an error.
Files that a person hands to the command line are checked strictly against the schema instead.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Final, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

DURATION_PATTERN: Final = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"
PERCENT_PATTERN: Final = r"^(100(\.0{1,3})?|[0-9]{1,2}(\.[0-9]{1,3})?)%$"
COUNT_OR_PERCENT_PATTERN: Final = r"^(100|[0-9]{1,2})%$"


def timestamp(unix: float) -> str:
    """Unix seconds as an RFC 3339 time in UTC with whole seconds, as Kubernetes writes them."""
    return datetime.fromtimestamp(int(unix), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def unix(written: str) -> float:
    """Unix seconds of an RFC 3339 time.

    Raises:
        ValueError: the text is no such time.
    """
    return datetime.fromisoformat(written).timestamp()


def _is_time(written: str) -> str:
    unix(written)
    return written


Duration = Annotated[str, Field(pattern=DURATION_PATTERN, max_length=32)]
Timestamp = Annotated[str, AfterValidator(_is_time), Field(max_length=32, json_schema_extra={"format": "date-time"})]
Percent = Annotated[str, Field(pattern=PERCENT_PATTERN, max_length=8)]
CountOrPercent = (
    Annotated[int, Field(ge=0, le=1024)] | Annotated[str, Field(pattern=COUNT_OR_PERCENT_PATTERN, max_length=4)]
)

_UNITS: Final = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


class ApiModel(BaseModel):
    """Base of all models of the resource."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)


class Rule(NamedTuple):
    """A rule of the resource, said twice: for the API server and for a file that no server has seen."""

    cel: str
    """CEL expression over ``self`` that is true where the rule holds."""
    holds: Callable[[Any], bool]
    """The same on the JSON value that ``self`` stands for, its defaults filled in."""
    message: str
    """What is wrong and what to do."""
    field: str = ""
    """Field under ``self`` to name as the culprit, such as ``engine.args``; empty: ``self``."""
    explain: Callable[[Any], str] | None = None
    """A message that names the culprits in a value that breaks the rule, where ``message`` can't."""


def validations(*rules: Rule) -> dict[str, Any]:
    """The schema extension that carries rules to the API server, for ``json_schema_extra`` of a field."""
    return {
        "x-kubernetes-validations": [
            {
                "rule": rule.cel,
                "message": rule.message,
                # A path into metadata is none that the API server knows of.
                **({"fieldPath": f".{rule.field}"} if rule.field and not rule.field.startswith("metadata") else {}),
            }
            for rule in rules
        ]
    }


def rules(*several: Rule) -> ConfigDict:
    """Configuration of a model that carries rules into its schema."""
    return ConfigDict(json_schema_extra=validations(*several))


def listed_by(*keys: str) -> dict[str, Any]:
    """The schema extension of a list whose entries are known by some of their fields, for ``json_schema_extra``."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


def free_form(description: str, **extra: Any) -> Any:
    """A field whose content the API server doesn't look into (a piece of a Pod, say)."""
    return Field(
        default_factory=dict,
        description=description,
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
        **extra,
    )


def seconds(duration: str) -> float:
    """Seconds of a duration such as ``5m`` or ``1h30m``.

    Raises:
        ValueError: the text is no duration.
    """
    if not re.fullmatch(DURATION_PATTERN, duration):
        raise ValueError(f"{duration!r} is no duration; write one such as 30s, 5m or 1h30m")
    return sum(float(n) * _UNITS[unit] for n, unit in re.findall(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)", duration))


def fraction(percent: str) -> float:
    """The share that a percentage such as ``5%`` stands for, 0 to 1.

    Raises:
        ValueError: the text is no percentage.
    """
    if not re.fullmatch(PERCENT_PATTERN, percent):
        raise ValueError(f"{percent!r} is no percentage; write one such as 5% or 99.5%")
    return float(percent[:-1]) / 100.0


def count(value: int | str, of: int, *, round_up: bool) -> int:
    """A number of Pods from a count or a percentage of ``of``.

    Surge rounds up and unavailability rounds down, as in a Deployment's rolling update.
    """
    if isinstance(value, int):
        return value
    exact = int(value[:-1]) * of / 100.0
    return math.ceil(exact) if round_up else math.floor(exact)
