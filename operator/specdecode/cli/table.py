"""Where resources stand, as text: a line each, or one in full. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from specdecode.api import SpecDecodeDeployment, unix
from specdecode.api.status import RevisionStatus

from .explain import acceptance, ago

HEAD = ("NAMESPACE", "NAME", "MODEL", "DEPTH", "PREFILL", "DECODE", "ROLLOUT", "ACCEPTANCE", "AGE")


def overview(resources: Sequence[SpecDecodeDeployment], now: float, *, namespaces: bool) -> list[str]:
    """A table with a line for each resource; with ``namespaces`` its first column is theirs."""
    rows = [HEAD, *(_row(resource, now) for resource in resources)]
    if not namespaces:
        rows = [row[1:] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _row(resource: SpecDecodeDeployment, now: float) -> tuple[str, ...]:
    meta, spec, summary = resource.metadata, resource.spec, resource.status.summary
    cells = (summary.prefill, summary.decode, summary.rollout, summary.acceptance, _age(resource, now))
    return (meta.namespace, meta.name, spec.model.name, str(spec.speculation.depth), *(cell or "-" for cell in cells))


def detail(resource: SpecDecodeDeployment, now: float) -> list[str]:
    """One resource in full."""
    meta, spec, status = resource.metadata, resource.spec, resource.status
    rows = [
        ("Name", f"{meta.name} in namespace {meta.namespace}, {_age(resource, now) or 'of unknown age'} old"),
        ("Model", f"{spec.model.name}, depth {spec.speculation.depth}"),
        ("Generation", f"{meta.generation}, of which {status.observed_generation} was last acted on"),
    ]
    rows += [(c.type, f"{c.status} ({c.reason}) {c.message}".rstrip()) for c in status.conditions]
    rows += [
        (f"{arm.capitalize()}", _revision(of))
        for arm, of in (("stable", status.stable), ("canary", status.canary))
        if of
    ]
    if status.canary is not None:
        step = f"step {status.rollout.step} of {status.rollout.steps}, {status.rollout.phase}"
        split = f", split by {status.split.lower()}" if status.split else ""
        rows.append(("Rollout", f"{step}, {status.weight.asked}% asked, {status.weight.reached}% reached{split}"))
    rows += [("Acceptance", acceptance(arm, "")) for arm in status.acceptance if arm.length]
    if status.baseline is not None and status.baseline.length:
        rows.append(("Baseline", acceptance(status.baseline, " at its promotion")))
    if status.verdict is not None:
        v = status.verdict
        rows.append(("Verdict", f"revision {v.revision}: {v.verdict} ({v.reason}), {_ago(v.at, now)}: {v.message}"))
    for t in status.tunings:
        rows.append(
            (
                "Tunings",
                f"revision {t.revision} {t.role}: depth {t.depth}, lookaheadBackoff {t.lookahead_backoff}, "
                f"hostCopy {t.host_copy}, topKSharing {t.top_k_sharing}",
            )
        )
    rows += [
        ("Rejected", f"revision {r.revision} ({r.reason}), {_ago(r.at, now)}{_times(r.attempts)}: {r.message}")
        for r in status.rejected
    ]
    width = max(len(label) for label, _ in rows)
    return [f"{label.ljust(width)}  {value}" for label, value in rows]


def _revision(arm: RevisionStatus) -> str:
    return (
        f"revision {arm.revision}: {arm.prefill} prefill, {arm.decode} decode, {arm.router} router Pods ready, depth "
        f"{arm.depth}, {arm.image}"
    )


def _times(attempts: int) -> str:
    return f", {attempts} times by now" if attempts > 1 else ""


def _age(resource: SpecDecodeDeployment, now: float) -> str:
    created = resource.metadata.creation_timestamp
    return ago(now - unix(created)) if created else ""


def _ago(at: str, now: float) -> str:
    return f"{ago(now - unix(at))} ago"
