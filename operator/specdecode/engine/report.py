"""What Pods said of their tunings, compared with what they were told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from specdecode.api.names import EngineRole


@dataclass(frozen=True, slots=True)
class TuningReport:
    """What the Pods of one revision said of themselves, by role.

    ``effective[role][tuning]`` is the one value that all Pods of the role gave, or Unknown.
    ``wrong`` names each Pod that runs something else than it was told, with both values, or two roles that disagree.
    ``unhonoured`` lists tunings that an unpatched image can't set or show.
    """

    revision: int
    effective: Mapping[EngineRole, Mapping[str, str]] = field(default_factory=dict)
    wrong: tuple[str, ...] = ()
    unhonoured: tuple[str, ...] = ()
    complete: bool = False
    """Whether every ready Pod has answered since it became ready."""
