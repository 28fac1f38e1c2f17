"""``analyze``: a recorded trace through the same windows, test and steps as the controller's."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from typing import Any

from specdecode.api import SpecDecodeDeploymentSpec, seconds

from . import files
from .validate import every_fault


def run(path: str, trace: str, output: str, plot: str | None) -> int:
    """Print the verdict and how it came; 0 for any verdict, 2 for input that can't be used."""
    from specdecode.acceptance import Step, TraceError, read_trace, replay
    from specdecode.rollout.policy import policy

    resource = files.one(path)
    errors = [fault for fault in every_fault(resource) if fault.severity == "error"]
    for fault in errors:
        print(f"{path}: {fault}", file=sys.stderr)
    if errors:
        return 2
    spec = resource.parse().spec
    steps = [Step(weight, pause) for weight, pause in _steps(spec)]
    rules = policy(spec)
    try:
        with _open(trace) as lines:
            result = replay(
                rules,
                steps,
                read_trace(lines),
                split="connection" if spec.traffic.gateway is None else "request",
                trust_connection=spec.rollout.analysis.connection_split == "Trust",
            )
    except TraceError as error:
        print(f"{trace}: {error}", file=sys.stderr)
        return 2
    except (OSError, UnicodeDecodeError) as error:
        print(f"{trace}: can't be read: {error}", file=sys.stderr)
        return 2
    if plot is not None and (code := _plot(result, rules.margin, plot)):
        return code
    if output == "json":
        print(json.dumps(_finite(result), allow_nan=False))
    else:
        print("\n".join(text(result)))
    return 0


def text(result: dict[str, Any]) -> list[str]:
    """A replay's result for a person: its end first, then each look at which the answer changed."""
    start = result["timeline"][0]["at"] if result["timeline"] else result["at"]
    lines = [f"{result['verdict']} ({result['reason']}) at {result['at']:g}: {result['message']}", ""]
    lines.append(f"{'AFTER':>9}  {'VERDICT':<13} {'REASON':<22} {'CHANGE':>8}  INTERVAL")
    before = None
    for look in result["timeline"]:
        if (look["verdict"], look["reason"]) == before:
            continue
        before = look["verdict"], look["reason"]
        lines.append(
            f"{look['at'] - start:>8.1f}s  {look['verdict']:<13} {look['reason']:<22} "
            f"{_percent(look['estimate']):>8}  {_interval(look['interval'])}".rstrip()
        )
    lines += [f"Step {step['step']} passed after {step['at'] - start:.1f}s." for step in result["passes"]]
    return lines


def _steps(spec: SpecDecodeDeploymentSpec) -> Iterator[tuple[float, float]]:
    for step in spec.rollout.steps:
        pause = step.pause
        by_hand = pause is not None and pause.duration is None
        yield float(step.weight), math.inf if by_hand else seconds(pause.duration) if pause and pause.duration else 0.0


def _open(trace: str) -> Any:
    from contextlib import nullcontext

    return nullcontext(sys.stdin) if trace == files.STDIN else open(trace, encoding="utf-8")


def _plot(result: dict[str, Any], margin: float, path: str) -> int:
    from specdecode.acceptance.plot import PlotUnavailableError, draw

    try:
        draw(result, margin, path)
    except (PlotUnavailableError, ValueError, OSError) as error:
        print(f"--plot {path}: {error}", file=sys.stderr)
        return 2
    return 0


def _percent(share: float | None) -> str:
    return "-" if share is None or not math.isfinite(share) else f"{100 * share:+.1f}%"


def _interval(bounds: list[float] | None) -> str:
    return "-" if bounds is None else f"{_percent(bounds[0])} to {_percent(bounds[1])}"


def _finite(value: Any) -> Any:
    """JSON knows no infinity: a bound that isn't known yet is null."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
