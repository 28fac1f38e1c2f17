"""vLLM flags that the operator writes itself, each with the field that a person sets instead.

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
    "speculative-config": "speculation",
    "tensor-parallel-size": "topology.<role>.parallelism.tensor",
}
