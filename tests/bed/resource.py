"""What a SpecDecodeDeployment says of itself, on whatever control plane it is."""

from __future__ import annotations

from typing import Final

from tests.bed.api import Api, Json

KIND: Final = "SpecDecodeDeployment"


class Resource:
    """Reads its status anew with each question.

    Attributes:
        api: of the control plane.
        namespace: of the resource.
        name: of the resource.
    """

    def __init__(self, api: Api, namespace: str, name: str) -> None:
        self.api, self.namespace, self.name = api, namespace, name

    def status(self) -> Json:
        found: Json = self.api.get(KIND, self.namespace, self.name).get("status", {})
        return found

    def conditions(self) -> list[Json]:
        found: list[Json] = self.status().get("conditions", [])
        return found

    def condition(self, kind: str) -> tuple[str, str, str]:
        """Status, reason and message of a condition; empty texts without it."""
        for found in self.conditions():
            if found["type"] == kind:
                return found["status"], found["reason"], found["message"]
        return "", "", ""

    def stable(self) -> int | None:
        revision: int | None = (self.status().get("stable") or {}).get("revision")
        return revision

    def canary(self) -> int | None:
        revision: int | None = (self.status().get("canary") or {}).get("revision")
        return revision

    def rejected(self) -> dict[int, str]:
        """Rejected revisions, with the reason."""
        return {found["revision"]: found["reason"] for found in self.status().get("rejected", [])}
