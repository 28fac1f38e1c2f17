"""The resource `SpecDecodeDeployment`: its models, its rules, the CRD made from them, and the names that rest on it."""

from .base import count, fraction, seconds, timestamp, unix
from .resource import SpecDecodeDeployment, SpecDecodeDeploymentSpec
from .status import SpecDecodeDeploymentStatus

__all__ = [
    "SpecDecodeDeployment",
    "SpecDecodeDeploymentSpec",
    "SpecDecodeDeploymentStatus",
    "count",
    "fraction",
    "seconds",
    "timestamp",
    "unix",
]
