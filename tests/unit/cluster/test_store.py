from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from specdecode.api.names import LABEL_DEPLOYMENT
from specdecode.cluster.kinds import POD, SDD, SERVICE, Key, Object
from specdecode.cluster.store import Store


def make() -> tuple[Store, list[Key]]:
    seen: list[Key] = []
    return Store(seen.append), seen


def pod(name: str, version: int, uid: str | None = None, owner: str | None = "glm", ns: str = "a") -> Object:
    labels = {} if owner is None else {LABEL_DEPLOYMENT: owner}
    return {
        "metadata": {
            "name": name,
            "namespace": ns,
            "uid": uid or f"uid-{name}",
            "resourceVersion": str(version),
            "labels": labels,
        }
    }


def resource(version: int, uid: str = "r") -> Object:
    return {"metadata": {"name": "glm", "namespace": "a", "uid": uid, "resourceVersion": str(version)}}


def test_objects_are_found_by_the_resource_that_their_label_names() -> None:
    store, seen = make()
    store.put(SDD, resource(1))
    store.put(POD, pod("p", 2))
    store.put(POD, pod("q", 3, owner="other"))
    assert store.resources() == [("a", "glm")]
    assert [o["metadata"]["name"] for o in store.children(("a", "glm"))] == ["p"]
    assert store.child(("a", "glm"), POD, "p") is not None
    assert store.child(("a", "glm"), SERVICE, "p") is None
    assert seen == [("a", "glm"), ("a", "glm"), ("a", "other")]


def test_only_a_newer_version_counts() -> None:
    store, seen = make()
    store.put(POD, pod("p", 9))
    for version in (9, 8, 10):
        store.put(POD, pod("p", version))
    assert store.children(("a", "glm"))[0]["metadata"]["resourceVersion"] == "10"
    assert len(seen) == 2


def test_versions_are_numbers_not_words() -> None:
    store, _ = make()
    store.put(POD, pod("p", 99))
    store.put(POD, pod("p", 100))
    assert store.children(("a", "glm"))[0]["metadata"]["resourceVersion"] == "100"


def test_the_answer_to_an_own_write_is_taken_in_quietly_and_its_echo_is_no_news() -> None:
    store, seen = make()
    store.put(POD, pod("p", 5), quiet=True)
    store.put(POD, pod("p", 5))
    assert seen == []


def test_what_is_gone_stays_gone_though_old_news_of_it_comes_late() -> None:
    store, seen = make()
    store.put(POD, pod("p", 5))
    store.remove("uid-p", "7")
    store.put(POD, pod("p", 6))
    assert store.children(("a", "glm")) == []
    assert len(seen) == 2


def test_an_object_that_gets_its_label_back_is_back() -> None:
    store, _ = make()
    store.put(POD, pod("p", 5))
    store.remove("uid-p", "7")
    store.put(POD, pod("p", 9))
    assert len(store.children(("a", "glm"))) == 1


def test_a_successor_of_the_same_name_takes_its_place_and_the_predecessor_s_end_is_no_news() -> None:
    store, _ = make()
    store.put(POD, pod("p", 5, uid="old"))
    store.put(POD, pod("p", 8, uid="new"))
    store.remove("old", "7")
    assert [o["metadata"]["uid"] for o in store.children(("a", "glm"))] == ["new"]


def test_an_object_whose_label_changes_moves() -> None:
    store, seen = make()
    store.put(POD, pod("p", 5))
    store.put(POD, pod("p", 6, owner="other"))
    assert store.children(("a", "glm")) == []
    assert len(store.children(("a", "other"))) == 1
    assert seen == [("a", "glm"), ("a", "glm"), ("a", "other")]
    store.put(POD, pod("p", 7, owner=None))
    assert store.children(("a", "other")) == []


def test_a_list_forgets_what_it_lacks_but_not_what_came_after_it() -> None:
    store, _ = make()
    for name, version in (("gone", 5), ("stays", 6), ("later", 50)):
        store.put(POD, pod(name, version))
    store.put(SERVICE, pod("service", 4))
    assert store.settle(POD, [pod("stays", 6), pod("found", 7)], "40") == 1
    assert sorted(o["metadata"]["name"] for o in store.children(("a", "glm"))) == [
        "found",
        "later",
        "service",
        "stays",
    ]


def test_a_list_of_one_namespace_says_nothing_of_others() -> None:
    store, _ = make()
    store.put(POD, pod("p", 5, ns="b"))
    assert store.settle(POD, [], "40", ("a",)) == 0
    assert store.settle(POD, [], "40", ("b",)) == 1


def test_pods_are_kept_without_managed_fields_and_all_know_their_kind() -> None:
    store, _ = make()
    for kind in (POD, SERVICE):
        store.put(
            kind, pod("p", 5, uid=kind.kind) | {"metadata": pod("p", 5, kind.kind)["metadata"] | {"managedFields": []}}
        )
    kept = {o["kind"]: o for o in store.children(("a", "glm"))}
    assert "managedFields" not in kept["Pod"]["metadata"]
    assert "managedFields" in kept["Service"]["metadata"]
    assert kept["Service"]["apiVersion"] == "v1"


# A history of one name: versions of objects with their UIDs, each put or gone. However events, lists and answers are
# mixed up, duplicated or late, the store ends where the cluster is.
history = st.lists(st.booleans(), min_size=1, max_size=12)


@given(history, st.randoms(use_true_random=False))
def test_the_newest_wins_in_any_order(lives: list[bool], random: Any) -> None:
    events: list[tuple[str, Object]] = []
    uid = 0
    alive = False
    for version, keep in enumerate(lives, start=1):
        if not alive:
            uid += 1
        alive = keep
        events.append(("put" if keep else "gone", pod("p", version, uid=str(uid))))
    shuffled = events + random.choices(events, k=4)
    random.shuffle(shuffled)
    store, _ = make()
    for what, obj in shuffled:
        if what == "put":
            store.put(POD, {"metadata": dict(obj["metadata"])})
        else:
            store.remove(obj["metadata"]["uid"], obj["metadata"]["resourceVersion"])
    expected = [events[-1][1]["metadata"]["resourceVersion"]] if alive else []
    assert [o["metadata"]["resourceVersion"] for o in store.children(("a", "glm"))] == expected
