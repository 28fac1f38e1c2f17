"""Parts that Pods of every role share."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Final

from specdecode.api.names import LABEL_MANAGED_BY, MANAGED_BY
from specdecode.api.spec import EngineSpec

RUN_AS: Final = 1000

POD_SECURITY: Final[dict[str, Any]] = {
    "runAsNonRoot": True,
    "runAsUser": RUN_AS,
    "runAsGroup": RUN_AS,
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY: Final[dict[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}


def template(labels: dict[str, str], spec: dict[str, Any], engine: EngineSpec) -> dict[str, Any]:
    """A Pod template with what every Pod of a deployment has. It admits to the restricted Pod security standard."""
    common: dict[str, Any] = {
        "automountServiceAccountToken": False,
        # A Service named vllm would otherwise put VLLM_PORT=tcp://... into every container.
        "enableServiceLinks": False,
        "securityContext": deepcopy(POD_SECURITY),
        # The labels to count by are put in when the revision has a number.
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
        ],
    }
    if engine.service_account_name:
        common["serviceAccountName"] = engine.service_account_name
    if engine.image_pull_secrets:
        common["imagePullSecrets"] = [{"name": name} for name in engine.image_pull_secrets]
    return {"metadata": {"labels": {LABEL_MANAGED_BY: MANAGED_BY, **labels}}, "spec": {**common, **spec}}


def http_probe(path: str, port: int, *, period: int, failures: int, timeout: int = 5) -> dict[str, Any]:
    """An HTTP probe; times in seconds."""
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period,
        "timeoutSeconds": timeout,
        "failureThreshold": failures,
    }
