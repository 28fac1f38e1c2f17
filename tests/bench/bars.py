"""Bars: the figures that were asked for, each with its bound and whether it holds."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

from tests.bed.control_plane import ROOT

FOLDER: Final = ROOT / "build" / "bench"


@dataclass(frozen=True)
class Bar:
    """One figure that was asked for.

    Attributes:
        name: of the figure.
        value: what was measured; infinite where what was waited for never came.
        unit: of value and bound: "s", "MB", "count" ...
        bound: what the value may at most, or has at least, to be.
        holds: whether it is so.
        worst: the cell or the run that the value comes from.
    """

    name: str
    value: float
    unit: str
    bound: float
    holds: bool
    worst: str

    @classmethod
    def at_most(cls, name: str, value: float, unit: str, bound: float, worst: str = "") -> Self:
        return cls(name, value, unit, bound, value <= bound, worst)

    @classmethod
    def at_least(cls, name: str, value: float, unit: str, bound: float, worst: str = "") -> Self:
        return cls(name, value, unit, bound, value >= bound, worst)

    def line(self) -> str:
        mark = "holds" if self.holds else "DOES NOT HOLD"
        return f"{self.name:28} {self.value:10.3f} {self.unit:6} bound {self.bound:g}  {mark}  {self.worst}".rstrip()


def write(path: Path, bars: Sequence[Bar], tables: dict[str, Any], asked: Sequence[str]) -> bool:
    """Writes a bench's result, and says each bar.

    Args:
        path: of the JSON file.
        bars: what was measured.
        tables: everything beside it that a reader wants.
        asked: names of all bars that there must be.

    Returns:
        Whether all that were asked are there and all hold.
    """
    missing = [name for name in asked if name not in {bar.name for bar in bars}]
    path.parent.mkdir(parents=True, exist_ok=True)
    shown = [asdict(bar) | {"value": bar.value if math.isfinite(bar.value) else "Infinity"} for bar in bars]
    path.write_text(json.dumps({"bars": shown, "missing": missing, "tables": tables}, indent=1) + "\n")
    for bar in bars:
        print(bar.line(), flush=True)
    for name in missing:
        print(f"{name:28} MISSING", flush=True)
    return not missing and all(bar.holds for bar in bars)
