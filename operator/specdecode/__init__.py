"""A Kubernetes operator for tuned multi-token-prediction deployments of vLLM."""

__version__ = "0.1.0"
