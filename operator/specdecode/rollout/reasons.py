"""Constants that say why: shown in conditions, Events, metrics and explanations."""

from __future__ import annotations

from typing import Final

# What the operator does or waits for.
UP_TO_DATE: Final = "UpToDate"
RECORDING: Final = "RecordingRevision"
WAITING_FOR_PODS: Final = "WaitingForPods"
MOVING: Final = "MovingTraffic"
ANALYSING: Final = "Analysing"
PAUSING: Final = "PauseRunning"
PAUSED: Final = "Paused"
WAITING_FOR_PERSON: Final = "WaitingForPromotion"
DELAYING: Final = "PromotionDelay"
TAKING_AWAY: Final = "TakingCanaryAway"
DELETING: Final = "Deleting"

# What Pods wait for.
UNSCHEDULABLE: Final = "Unschedulable"
CRASH_LOOPING: Final = "CrashLooping"
IMAGE_PULL_FAILING: Final = "ImagePullFailing"
CONTAINER_CONFIG: Final = "ContainerConfigError"
TUNINGS_WRONG: Final = "TuningsNotEffective"
TUNINGS_UNSEEN: Final = "TuningsUnseen"
IMAGES_DIFFER: Final = "ImagesDiffer"

# What happened.
REVISION_RECORDED: Final = "RevisionRecorded"
RECORD_RESTORED: Final = "RecordRestored"
REPLACED: Final = "RevisionReplaced"
CANARY_STARTED: Final = "CanaryStarted"
CANARY_DROPPED: Final = "CanaryDropped"
STEP_REACHED: Final = "StepReached"
STEP_PASSED: Final = "StepPassed"
PROMOTED: Final = "Promoted"
PROMOTED_BY_HAND: Final = "PassedByRequest"
ROLLING_BACK: Final = "RollingBack"
ROLLED_BACK: Final = "RolledBack"
ABORTED: Final = "Aborted"
NO_DATA_AT_DEADLINE: Final = "NoDataAtDeadline"
INCONCLUSIVE_AT_DEADLINE: Final = "InconclusiveAtDeadline"

# What is in the way.
NAME_TAKEN: Final = "NameTaken"
WRITE_REFUSED: Final = "WriteRefused"
ROUTE_NOT_ACCEPTED: Final = "RouteNotAccepted"
SURGE_TOO_SMALL: Final = "SurgeTooSmall"
