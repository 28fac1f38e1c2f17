"""The operator's own metrics, and how a resource's series come and go.

Names and units follow Prometheus: base units, `_total` for counters, ratios from 0 to 1. Live numbers are here
rather than in status, which is written seldom. Nothing here decides anything.
"""

from __future__ import annotations

import platform
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.metrics import MetricWrapperBase

# A second series for each counter and histogram, with nothing that anybody asks for.
disable_created_metrics()

RESOURCE: Final = ("namespace", "name")
ARM: Final = (*RESOURCE, "revision", "arm")
VERDICTS: Final = ("Pass", "Fail", "Inconclusive", "NoData")
Names = tuple[str, str]
Series = dict[tuple[MetricWrapperBase, tuple[str, ...]], float]
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """All metrics of one operator process, in a registry of their own.

    Series of one resource are set through `Metrics.of`, which removes those that a later round no longer sets; all of
    them vanish with `Metrics.forget`.
    """

    def __init__(self, version: str) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        self.acceptance_length = Gauge(
            "specdecode_acceptance_length", "Mean acceptance length: tokens a decode step.", ARM, registry=r
        )
        self.acceptance_length_low = Gauge(
            "specdecode_acceptance_length_low", "Lower end of its 95 % interval.", ARM, registry=r
        )
        self.acceptance_length_high = Gauge(
            "specdecode_acceptance_length_high", "Upper end of its 95 % interval.", ARM, registry=r
        )
        self.position_acceptance = Gauge(
            "specdecode_position_acceptance_ratio",
            "Accepted over proposed at a position, counted from 1.",
            (*ARM, "position"),
            registry=r,
        )
        self.drafts = Gauge("specdecode_evidence_drafts", "Drafts that the length rests on.", ARM, registry=r)
        self.drafts_total = Counter("specdecode_drafts_total", "Drafts counted by scraping.", ARM, registry=r)
        self.verdict = Gauge(
            "specdecode_verdict", "1 for the last verdict on the canary.", (*RESOURCE, "verdict"), registry=r
        )
        self.baseline = Gauge(
            "specdecode_baseline_acceptance_length", "Acceptance length at promotion.", RESOURCE, registry=r
        )
        self.rollbacks = Counter(
            "specdecode_rollbacks_total", "Canaries taken away.", (*RESOURCE, "reason"), registry=r
        )
        self.promotions = Counter("specdecode_promotions_total", "Canaries promoted.", RESOURCE, registry=r)
        self.weight_asked = Gauge(
            "specdecode_traffic_weight_asked_ratio", "Canary's share that its step asks for.", RESOURCE, registry=r
        )
        self.weight_reached = Gauge(
            "specdecode_traffic_weight_reached_ratio", "Canary's share that it has.", RESOURCE, registry=r
        )
        self.ready_pods = Gauge("specdecode_ready_pods", "Ready Pods.", (*RESOURCE, "role", "arm"), registry=r)
        self.wanted_pods = Gauge(
            "specdecode_wanted_pods", "Pods that the resource asks for.", (*RESOURCE, "role"), registry=r
        )
        self.tunings = Gauge(
            "specdecode_tunings_effective",
            "1 for the value of a tuning that all Pods of the role report.",
            (*RESOURCE, "role", "tuning", "value"),
            registry=r,
        )
        self.condition = Gauge(
            "specdecode_condition", "1 for the status of a condition.", (*RESOURCE, "type", "status"), registry=r
        )
        self.reconcile_seconds = Histogram(
            "specdecode_reconcile_duration_seconds",
            "From taking a resource off the queue to its last write.",
            buckets=_SECONDS,
            registry=r,
        )
        self.reconcile_errors = Counter(
            "specdecode_reconcile_errors_total", "Reconciles that ended in an error.", registry=r
        )
        self.queue_depth = Gauge("specdecode_queue_depth", "Resources waiting for a worker.", registry=r)
        self.scrapes = Counter(
            "specdecode_scrapes_total", "Pages of metrics asked for.", ("source", "result"), registry=r
        )
        self.scrape_seconds = Histogram(
            "specdecode_scrape_duration_seconds",
            "From asking for a page to having parsed it.",
            buckets=_SECONDS,
            registry=r,
        )
        self.api_writes = Counter(
            "specdecode_api_writes_total", "Writes to the API server.", ("verb", "kind", "result"), registry=r
        )
        self.events_dropped = Counter(
            "specdecode_events_dropped_total", "Kubernetes Events that a full queue dropped.", registry=r
        )
        self.leader = Gauge("specdecode_leader", "1 while this process may write.", registry=r)
        build = Gauge("specdecode_build_info", "Versions.", ("version", "python"), registry=r)
        build.labels(version, platform.python_version()).set(1)
        self._round: dict[Names, Series] = defaultdict(dict)
        self._counted: dict[Names, set[tuple[MetricWrapperBase, tuple[str, ...]]]] = defaultdict(set)

    def of(self, namespace: str, name: str) -> Resource:
        """Start a new round of one resource's series; `Resource.close` ends it."""
        return Resource(self, namespace, name)

    def count(self, counter: Counter, namespace: str, name: str, *labels: str) -> None:
        """Raise a resource's counter by one. The series lives as long as the resource."""
        values = (namespace, name, *labels)
        counter.labels(*values).inc()
        self._counted[(namespace, name)].add((counter, values))

    def forget(self, namespace: str, name: str) -> None:
        """Remove every series of a resource that is gone."""
        for metric, values in (*self._round.pop((namespace, name), {}), *self._counted.pop((namespace, name), set())):
            metric.remove(*values)

    def replace(self, namespace: str, name: str, series: Series) -> None:
        """Set a resource's series of one round, and remove those of the round before that aren't among them."""
        before = self._round[(namespace, name)]
        for metric, values in before.keys() - series.keys():
            metric.remove(*values)
        for (metric, values), value in series.items():
            if isinstance(metric, Gauge):
                metric.labels(*values).set(value)
            elif isinstance(metric, Counter):
                metric.labels(*values).inc(max(0.0, value - before.get((metric, values), 0.0)))
        self._round[(namespace, name)] = series


class Resource:
    """One round of setting a resource's series.

    Collects first and applies at the end, so that no scrape of the operator sees half a round.
    """

    def __init__(self, metrics: Metrics, namespace: str, name: str) -> None:
        self._metrics = metrics
        self._names = (namespace, name)
        self._series: Series = {}

    def set(self, metric: Gauge | Counter, value: float, *labels: str) -> None:
        """Give a series of this resource its value; of a counter its total so far, which may only grow.

        Labels are those after namespace and name.
        """
        self._series[(metric, (*self._names, *labels))] = value

    def one_of(self, gauge: Gauge, value: str, values: Iterable[str], *labels: str) -> None:
        """Set the series of ``value`` to 1 and those of the other values to 0."""
        for each in values:
            self.set(gauge, float(each == value), *labels, each)

    def close(self) -> None:
        """Apply the round."""
        self._metrics.replace(*self._names, self._series)
