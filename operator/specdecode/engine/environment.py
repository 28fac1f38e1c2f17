"""Environment variables that the operator writes itself."""

from __future__ import annotations

from typing import Final

OWNED_ENV: Final[dict[str, str]] = {
    "OPENAI_API_KEY": "spec.engine.apiKeySecretRef",
    "VLLM_API_KEY": "spec.engine.apiKeySecretRef",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "the operator, from the Pod's address",
    "VLLM_NIXL_SIDE_CHANNEL_PORT": "the operator",
}
"""Each with what sets it instead."""
