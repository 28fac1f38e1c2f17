"""``validate``: everything wrong with a file, before a cluster sees it."""

from __future__ import annotations

import sys

from specdecode.api import SpecDecodeDeployment
from specdecode.api.faults import Fault

from . import files


def run(path: str) -> int:
    """Print each fault as ``path: value: remedy`` on a line of its own; 0 without any, else 1.

    Warnings go to standard error and fail nothing.
    """
    try:
        contents = files.read(path)
    except files.UnreadableError as error:
        print(error)
        return 1
    for kind in contents.ignored:
        print(f"{path}: a {kind} in it isn't checked", file=sys.stderr)
    several = len(contents.resources) > 1
    failed = False
    for resource in contents.resources:
        prefix = f"{resource.name}/" if several else ""
        errors = 0
        for fault in every_fault(resource):
            if fault.severity == "error":
                errors += 1
                print(f"{prefix}{fault}")
            else:
                print(f"warning: {prefix}{fault}", file=sys.stderr)
        if errors == 0:
            print(f"{resource.name}: valid")
        failed = failed or errors > 0
    return 1 if failed else 0


def every_fault(resource: files.Authored) -> list[Fault]:
    """Faults of shape and rules, and if there are none, of what only vLLM or the planner would run into."""
    return list(resource.faults) or spec_faults(resource.parse())


def spec_faults(resource: SpecDecodeDeployment) -> list[Fault]:
    """What is wrong with a resource that the API server takes."""
    from specdecode.engine.checks import check
    from specdecode.rollout.capacity import first_step_faults
    from specdecode.rollout.policy import policy_faults

    return [*check(resource.spec), *first_step_faults(resource.spec), *policy_faults(resource.spec)]
