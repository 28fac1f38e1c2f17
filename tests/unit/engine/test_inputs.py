"""Inputs that can change under a revision."""

from __future__ import annotations

from specdecode.engine.inputs import mutable_inputs

from .specs import spec

DIGEST = "@sha256:" + "0" * 64


def test_a_tag_and_a_branch_are_named() -> None:
    found = mutable_inputs(spec({"model.revision": "main", "topology.router.image": "r:1"}))
    assert [line.split(" ")[0] for line in found] == [
        "spec.engine.image",
        "spec.topology.router.image",
        "spec.model.revision",
    ]
    assert "main is no commit" in found[2]


def test_pinned_inputs_are_not() -> None:
    changes = {
        "engine.image": f"registry.example/vllm:0.33.0{DIGEST}",
        "topology.router.image": f"r{DIGEST}",
        "model.revision": "0123456789abcdef0123456789abcdef01234567",
    }
    assert mutable_inputs(spec(changes)) == []


def test_a_volume_is_named_and_its_revision_is_not() -> None:
    changes = {"engine.image": f"v{DIGEST}", "model.source": {"volume": {"claimName": "weights"}}}
    assert [line.split(" ")[0] for line in mutable_inputs(spec(changes))] == ["spec.model.source.volume.claimName"]
