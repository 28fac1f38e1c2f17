"""What the operator says of itself: metrics, health and logs. It imports nothing that decides."""

from .health import Health
from .logs import ResourceLogger
from .metrics import Metrics

__all__ = ["Health", "Metrics", "ResourceLogger"]
