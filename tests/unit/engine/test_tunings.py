"""Told and in force, by Pod and over both roles."""

from __future__ import annotations

from typing import Any

import pytest

from specdecode.api.names import EngineRole
from specdecode.engine.report import TuningReport
from specdecode.engine.tunings import report

from .specs import UNPATCHED, spec

INFO = {
    "patch_series": "0.33.0-1",
    "kv_role": "kv_consumer",
    "method": "mtp",
    "depth": "3",
    "depth_schedule": "",
    "modules": "1",
    "lookahead_backoff": "late",
    "lookahead_backoff_tokens": "3",
    "host_copy": "auto",
    "top_k_sharing": "unsupported",
    "top_k_sharing_reason": "the model has no hooks",
}


def _infos(decode: dict[str, str] | None = None, prefill: dict[str, str] | None = None) -> dict[EngineRole, Any]:
    return {
        "prefill": {"p-0": INFO | {"kv_role": "kv_producer"} | (prefill or {})},
        "decode": {"d-0": INFO | (decode or {}), "d-1": dict(INFO)},
    }


def _report(changes: dict[str, Any] | None = None, infos: dict[EngineRole, Any] | None = None) -> TuningReport:
    expected: dict[EngineRole, list[str]] = {"prefill": ["p-0"], "decode": ["d-0", "d-1"]}
    return report(4, spec(changes), _infos() if infos is None else infos, expected)


def test_all_as_told() -> None:
    found = _report()
    assert found.wrong == found.unhonoured == ()
    assert found.complete
    assert found.revision == 4
    shown = {"depth": "3", "lookahead_backoff": "Late", "host_copy": "Auto", "top_k_sharing": "Unsupported"}
    assert found.effective == {"prefill": shown, "decode": shown}


@pytest.mark.parametrize(
    ("changes", "decode", "wrong"),
    [
        ({"speculation.topKSharing": "Auto"}, {}, None),
        ({"speculation.topKSharing": "Enabled"}, {"top_k_sharing": "enabled"}, None),
        ({"speculation.topKSharing": "Disabled"}, {"top_k_sharing": "disabled"}, None),
        ({"speculation.hostCopy": "Never"}, {"host_copy": "never"}, None),
        (
            {"speculation.hostCopy": "Never"},
            {"host_copy": "unsupported", "host_copy_reason": "CPU"},
            "decode Pod d-0 runs host_copy Unsupported, told Never: CPU",
        ),
        ({"speculation.hostCopy": "Always"}, {}, "decode Pod d-0 runs host_copy Auto, told Always"),
        ({}, {"kv_role": "none"}, "decode Pod d-0 runs kv_role none, told kv_consumer"),
        (
            {"speculation.depthByBatch": [{"upTo": 8, "depth": 2}]},
            {"depth_schedule": "", "depth_schedule_reason": "data parallelism"},
            "decode Pod d-0 runs depth_schedule none, told 1-8:2: data parallelism",
        ),
        ({}, {"depth_schedule": "1-8:2"}, "decode Pod d-0 runs depth_schedule 1-8:2, told none"),
    ],
)
def test_told_and_in_force(changes: dict[str, Any], decode: dict[str, str], wrong: str | None) -> None:
    infos: dict[EngineRole, Any] = {"decode": {"d-0": INFO | decode}}
    found = report(1, spec(changes), infos, {"decode": ["d-0"]})
    assert found.wrong == (() if wrong is None else (wrong,))


def test_a_schedule_in_force_is_shown() -> None:
    changes = {"speculation.depthByBatch": [{"upTo": 8, "depth": 3}, {"upTo": 64, "depth": 2}]}
    infos: dict[EngineRole, Any] = {"decode": {"d-0": INFO | {"depth_schedule": "1-8:3,9-64:2"}}}
    found = report(1, spec(changes), infos, {"decode": ["d-0"]})
    assert found.wrong == ()
    assert found.effective["decode"]["depth"] == "3 (1-8:3,9-64:2)"


def test_another_depth_is_named_by_pod_and_by_role() -> None:
    found = _report(infos=_infos(prefill={"depth": "5"}))
    assert found.wrong == (
        "prefill Pod p-0 runs depth 5, told 3",
        "Pods don't agree in depth: decode 3; prefill 5",
    )


@pytest.mark.parametrize("label", ["patch_series", "lookahead_backoff", "lookahead_backoff_tokens"])
def test_roles_must_agree(label: str) -> None:
    found = _report(infos=_infos(prefill={label: "upstream"}))
    assert len(found.wrong) == 1
    assert found.wrong[0].startswith(f"Pods don't agree in {label}: decode ")


def test_pods_of_a_role_must_agree() -> None:
    found = _report(infos=_infos(decode={"lookahead_backoff_tokens": "2"}))
    assert found.wrong == ("Pods don't agree in lookahead_backoff_tokens: decode 2 and 3; prefill 3",)


def test_nothing_is_handed_over_in_aggregated_serving() -> None:
    changes = {"topology.prefill": None, "speculation.lookaheadBackoff": "Upstream"}
    infos: dict[EngineRole, Any] = {"decode": {"d-0": INFO | {"kv_role": "none", "lookahead_backoff": "inactive"}}}
    found = report(1, spec(changes), infos, {"decode": ["d-0"]})
    assert found.wrong == ()
    assert set(found.effective) == {"decode"}


def test_a_pod_that_has_not_answered() -> None:
    infos = _infos()
    del infos["decode"]["d-1"]
    assert not _report(infos=infos).complete
    assert report(1, spec(), {}, {"prefill": [], "decode": []}).complete


def test_an_unpatched_image_is_unknown_and_not_wrong() -> None:
    changes = {"engine.image": UNPATCHED, "speculation.hostCopy": "Always", "speculation.lookaheadBackoff": "Disabled"}
    found = _report(changes, {"prefill": {"p-0": None}, "decode": {"d-0": None, "d-1": None}})
    assert found.complete
    assert found.wrong == ()
    assert set(found.effective["decode"].values()) == {"Unknown"}
    assert found.unhonoured == (
        "speculation.lookaheadBackoff Disabled can't be set",
        "speculation.hostCopy Always can't be set",
        "speculation.depth 3 can't be shown",
        "speculation.topKSharing Auto can't be shown",
    )


def test_an_image_that_passes_for_patched_and_is_not() -> None:
    found = _report(infos={"prefill": {"p-0": None}, "decode": {"d-0": None, "d-1": None}})
    assert found.wrong == ()
    assert found.unhonoured[-1].startswith("the image passes for patched")


def test_one_silent_pod_makes_the_role_unknown() -> None:
    infos = _infos()
    infos["decode"]["d-1"] = None
    found = _report(infos=infos)
    assert set(found.effective["decode"].values()) == {"Unknown"}
    assert found.effective["prefill"]["depth"] == "3"
    assert found.complete
