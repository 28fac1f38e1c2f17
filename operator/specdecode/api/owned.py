"""vLLM flags that the operator writes itself, each with the field that a person sets instead.

vLLM's parser takes any unambiguous beginning of a flag for the flag itself, so those are owned too.
They are refused in ``engine.args``, in a role's ``args`` and in a podTemplate's command and args:
two writers of one flag would let a Pod run something else than its resource says.
"""

from __future__ import annotations

from typing import Final

OWNED_FLAGS: Final[dict[str, str]] = {
    "additional-config": "speculation.hostCopy",
    "api-key": "engine.apiKeySecretRef",
    "config": "engine.args, one entry a flag",
    "cudagraph-capture-sizes": "engine.cudagraphCaptureSizes",
    "data-parallel-size": "topology.<role>.parallelism.data",
    "enable-expert-parallel": "topology.<role>.parallelism.expert",
    "host": "nothing: the operator sets it",
    "kv-transfer-config": "topology.kvTransfer",
    "model": "model.name",
    "pipeline-parallel-size": "topology.<role>.parallelism.pipeline",
    "port": "nothing: the operator sets it",
    "revision": "model.revision",
    "served-model-name": "model.servedName",
    "shutdown-timeout": "topology.<role>.drain",
    "spec-method": "speculation.method",
    "spec-model": "speculation.method",
    "spec-tokens": "speculation.depth",
    "speculative-config": "speculation",
    "tensor-parallel-size": "topology.<role>.parallelism.tensor",
}


def owned(flag: str) -> str | None:
    """The owned flag that vLLM would understand ``flag`` (long name, no dashes in front) to be; None: not owned."""
    bare = flag.removeprefix("no-")
    return next((name for name in OWNED_FLAGS if name.startswith(bare)), None)
