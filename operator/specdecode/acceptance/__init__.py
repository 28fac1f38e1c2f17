"""From the counters of two arms to a verdict. Pure: no clock, no input or output; times are Unix seconds.

analysis = Analysis(policy, steps=2, split="request", trust_connection=False, now=t0, history=history)
analysis.begin_step(step, weight, now)     # the weight (0 to 100) of a step is reached
analysis.observe(items)                    # Sample and ScrapeError, any order
verdict = analysis.look(now)               # at most once in policy.interval
analysis.arm_summary("canary", now)        # ArmSummary: positions, length, drafts, requests, interval
analysis.state()                           # JSON; Analysis(..., state=saved) goes on

history = History(policy.guard_interval, policy.short_interval, saved_or_none)   # stable's noise, outside a canary
history.observe(items); history.state()

guard = Guard(policy, now=t0, baseline=None, state=saved_or_none)        # a revision that serves alone
guard.observe(items); suspicion = guard.look(now); guard.baseline(); guard.state()

result = replay(policy, [Step(10, pause=0), ...], read_trace(lines))     # TraceError names the line
plot.draw(result, policy.margin, path)                                   # PlotUnavailableError without matplotlib
"""

from specdecode.acceptance.analysis import Analysis
from specdecode.acceptance.counters import Counters, Increment
from specdecode.acceptance.guard import Guard
from specdecode.acceptance.history import History
from specdecode.acceptance.trace import Step, TraceError, TraceLine, read_trace, replay
from specdecode.acceptance.types import (
    Arm,
    ArmEvidence,
    ArmSummary,
    Baseline,
    Evidence,
    Policy,
    Reason,
    Sample,
    ScrapeError,
    Split,
    Suspicion,
    Verdict,
    VerdictKind,
)

__all__ = [
    "Analysis",
    "Arm",
    "ArmEvidence",
    "ArmSummary",
    "Baseline",
    "Counters",
    "Evidence",
    "Guard",
    "History",
    "Increment",
    "Policy",
    "Reason",
    "Sample",
    "ScrapeError",
    "Split",
    "Step",
    "Suspicion",
    "TraceError",
    "TraceLine",
    "Verdict",
    "VerdictKind",
    "read_trace",
    "replay",
]
