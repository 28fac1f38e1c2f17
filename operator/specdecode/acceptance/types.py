"""The words of the acceptance analysis: what it reads (samples), what it obeys (policy), what it says (verdicts).

All times are Unix seconds (floats). All counters are cumulative, as vLLM serves them; ``counters.py`` turns them
into increments.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Arm = Literal["stable", "canary"]
Split = Literal["request", "connection"]
Source = Literal["engine", "router"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One successful scrape of one engine of a decode Pod, or of one proxy before an arm's router.

    Counters (``drafts`` to ``generation_tokens``, ``requests_finished``, ``requests_failed``, ``tpot_*``,
    ``transfers_failed``) are cumulative since the process started; ``requests_running`` is a gauge; ``None`` means
    that the series was absent. ``accepted_per_pos[i]`` counts accepted tokens at position i + 1, one entry for each
    position; ``drafted_per_pos`` likewise counts the drafts that proposed it. ``tpot_sum`` is in seconds,
    ``requests_finished`` are those that ended well, ``requests_failed`` the others: together they are all that ended.
    ``created`` is the process's start (Unix seconds) where the exposition tells it. ``empty_first_draft`` is true
    where the counters hold one draft a request that proposed nothing (vLLM under prefill/decode disaggregation).
    """

    t: float
    arm: Arm
    pod: str
    engine: str
    depth: int
    drafts: float
    draft_tokens: float
    accepted: float
    accepted_per_pos: tuple[float, ...]
    drafted_per_pos: tuple[float, ...] | None = None
    generation_tokens: float | None = None
    tpot_sum: float | None = None
    tpot_count: float | None = None
    requests_running: float | None = None
    requests_finished: float | None = None
    requests_failed: float | None = None
    transfers_failed: float | None = None
    created: float | None = None
    empty_first_draft: bool = False
    source: Source = "engine"


@dataclass(frozen=True, slots=True)
class ScrapeError:
    """A scrape that failed; it says nothing about the Pod's quality."""

    t: float
    arm: Arm
    pod: str
    error: str


@dataclass(frozen=True, slots=True)
class Policy:
    """Plain numbers of ``spec.rollout.analysis`` and ``spec.guard``.

    Rates, margins and confidence are fractions (0.05 is 5 %), times are seconds.

    - ``margin``: the relative fall of acceptance length that is still harmless.
    - ``confidence``: 1 minus the chance that a harmless revision is ever rolled back, and that a revision worse than
      the margin is ever promoted.
    - ``min_requests``: distinct requests that a window must hold before any test may speak.
    - ``errors_tolerance``, ``errors_ratio``: failing is a share of requests above stable's times the ratio plus the
      tolerance.
    - ``latency_margin``: the relative rise of time per output token that is still harmless; with None it is only told.
    - ``floor``: acceptance at position 1 below which speculation is broken, whatever stable does; 0 turns it off.
    - ``collapse``: a canary that accepts less than this part of stable's tokens per draft has collapsed.
    - ``stale_after``: seconds without data from an arm after which the answer is NoData.
    - ``guard_fall``: the relative fall of acceptance length after promotion that is suspected.
    """

    margin: float = 0.05
    confidence: float = 0.99
    interval: float = 5.0
    min_requests: int = 20
    errors_tolerance: float = 0.02
    errors_ratio: float = 2.0
    latency_margin: float | None = 0.15
    floor: float = 0.1
    collapse: float = 0.5
    stale_after: float = 30.0
    guard_interval: float = 30.0
    guard_fall: float = 0.2

    def __post_init__(self) -> None:
        """Raise ValueError naming the field, the value and what would do."""
        checks = (
            ("margin", self.margin, 0.0 < self.margin < 0.5, "above 0 and below 0.5"),
            ("confidence", self.confidence, 0.5 <= self.confidence < 1.0, "from 0.5 up to, but not, 1"),
            ("interval", self.interval, 0.1 <= self.interval <= 3600.0, "from 0.1 to 3600 seconds"),
            ("min_requests", self.min_requests, self.min_requests >= 1, "1 or more"),
            ("errors_tolerance", self.errors_tolerance, 0.0 < self.errors_tolerance < 1.0, "above 0 and below 1"),
            ("errors_ratio", self.errors_ratio, self.errors_ratio >= 1.0, "1 or more"),
            ("floor", self.floor, 0.0 <= self.floor < 1.0, "from 0 up to, but not, 1"),
            ("collapse", self.collapse, 0.0 <= self.collapse < 1.0, "from 0 up to, but not, 1"),
            ("stale_after", self.stale_after, self.stale_after > 0.0, "above 0 seconds"),
            ("guard_interval", self.guard_interval, self.guard_interval > 0.0, "above 0 seconds"),
            ("guard_fall", self.guard_fall, 0.0 <= self.guard_fall <= 1.0, "from 0 to 1"),
        )
        for field, value, holds, remedy in checks:
            if not holds:
                raise ValueError(f"analysis {field} is {value!r}: give a number {remedy}")
        if self.latency_margin is not None and self.latency_margin <= 0.0:
            raise ValueError(f"analysis latency_margin is {self.latency_margin!r}: give a number above 0, or none")

    @property
    def short_interval(self) -> float | None:
        """Seconds between the two scrapes of a pair outside a canary, as far apart as a canary's looks will be.

        None where the guard's interval is hardly longer, so that single scrapes tell as much.
        """
        return self.interval if self.guard_interval > 2.0 * self.interval else None


class VerdictKind(StrEnum):
    """What a look may say. Only Pass and Fail change anything."""

    PASS = "Pass"
    FAIL = "Fail"
    INCONCLUSIVE = "Inconclusive"
    NO_DATA = "NoData"


class Reason(StrEnum):
    """Why a verdict is what it is; shown in conditions, Events and metrics."""

    ACCEPTANCE_HELD = "AcceptanceHeld"
    ACCEPTANCE_FELL = "AcceptanceFell"
    ACCEPTANCE_COLLAPSED = "AcceptanceCollapsed"
    BELOW_FLOOR = "BelowFloor"
    REQUESTS_FAILING = "RequestsFailing"
    SLOWER_TOKENS = "SlowerTokens"
    SPLIT_BY_CONNECTION = "SplitByConnection"
    NOT_ENOUGH_EVIDENCE = "NotEnoughEvidence"
    PODS_UNSEEN = "PodsUnseen"
    NO_COMMON_POSITIONS = "NoCommonPositions"
    NO_COMPARISON_LEFT = "NoComparisonLeft"
    NO_TRAFFIC = "NoTraffic"
    SCRAPES_FAILING = "ScrapesFailing"


@dataclass(frozen=True, slots=True)
class ArmEvidence:
    """What one arm's counters said since the step began: drafts, distinct requests, Pods that drafted, seconds."""

    drafts: float
    requests: float
    pods: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """Both arms' evidence."""

    stable: ArmEvidence
    canary: ArmEvidence


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of one look.

    ``estimate`` is the relative change of acceptance length over the common positions (-0.31 is a fall of 31 %) and
    ``interval`` its time-uniform confidence interval; both None while nothing is known. ``by_errors`` is true for a
    Fail because requests fail: all traffic then leaves the canary at once. ``more_seconds`` says how much longer an
    Inconclusive would take at the present traffic if the canary were as good as stable; None where traffic is too
    thin to say.
    """

    kind: VerdictKind
    reason: Reason
    message: str
    by_errors: bool
    estimate: float | None
    interval: tuple[float, float] | None
    margin: float
    evidence: Evidence
    more_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class ArmSummary:
    """One arm's acceptance since the step began, for status and metrics.

    ``positions`` holds p_i, accepted at position i over drafts that proposed it; ``length`` is 1 + the sum of p_i
    over all positions; ``interval`` is the 95 % interval of ``length`` (not time-uniform; for display).
    """

    positions: tuple[float, ...]
    length: float | None
    drafts: float
    requests: float
    interval: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Baseline:
    """Acceptance recorded at promotion: p_i by position, length, and how many drafts it rests on."""

    positions: tuple[float, ...]
    length: float
    drafts: float


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What the guard thinks after promotion; a suspicion is no verdict, since there is no second arm."""

    suspected: bool
    reason: Reason
    message: str
    length: float | None
    baseline: float | None
