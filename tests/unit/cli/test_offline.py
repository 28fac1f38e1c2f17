"""`validate`, `render` and `analyze` as a person runs them: exit status, output and errors."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from specdecode.cli.files import _in_itself
from specdecode.cli.main import main
from tests.unit.api.rule_cases import PLAIN, changed

EXAMPLES = Path(__file__).parents[3] / "examples"


def _write(tmp_path: Path, *documents: Any, name: str = "resource.yaml") -> str:
    path = tmp_path / name
    path.write_text(yaml.safe_dump_all(documents, sort_keys=False))
    return str(path)


@pytest.fixture
def plain(tmp_path: Path) -> str:
    return _write(tmp_path, PLAIN)


class TestValidate:
    @pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
    def test_every_example_is_valid(self, example: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["validate", "-f", str(example)]) == 0
        out, err = capsys.readouterr()
        assert out.endswith(": valid\n")
        assert err == ""

    def test_there_are_examples_of_everything(self) -> None:
        files = sorted(EXAMPLES.glob("*.yaml"))
        assert files[0].name == "01-plain.yaml"
        texts = [path.read_text() for path in files]
        parsed = [json.dumps(yaml.safe_load(text)) for text in texts]
        assert min(parsed, key=len) == parsed[0]
        for said in ("gateway:", "depthByBatch:", "device: Cpu", "IPC_LOCK", "maxSurge: 0", "volume:"):
            assert any(said in text for text in texts), said

    def test_each_fault_is_a_line(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = _write(tmp_path, changed({"spec.speculation.dept": 3, "spec.engine.image": 5}))
        assert main(["validate", "-f", path]) == 1
        assert capsys.readouterr().out.splitlines() == [
            "spec.speculation.dept: 3: is no field of the resource: did you mean depth?",
            'spec.engine.image: 5: must be a string: put it in quotes, "5"',
        ]

    def test_a_rule_that_the_api_server_has_too(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["validate", "-f", _write(tmp_path, changed({"spec.speculation.depth": 17}))]) == 1
        assert capsys.readouterr().out == (
            "spec.speculation.depth: 17: depth must be 1 to 16: choose a number in that range, such as 3\n"
        )

    def test_what_only_the_planner_would_run_into(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        small = {"maxSurge": 0, "maxUnavailable": "10%"}
        assert main(["validate", "-f", _write(tmp_path, changed({"spec.rollout.capacity.decode": small}))]) == 1
        (line,) = capsys.readouterr().out.splitlines()
        assert line.startswith("spec.rollout.capacity.decode.max")
        assert "set" in line

    def test_what_only_vllm_would_run_into(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        changes = {"spec.topology.decode.parallelism": {"pipeline": 2}}
        assert main(["validate", "-f", _write(tmp_path, changed(changes))]) == 1
        assert capsys.readouterr().out.startswith("spec.topology.decode.parallelism.pipeline: 2: ")

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("a: &a [*a]", "stands within what it stands for"),
            ("kind: SpecDecodeDeployment\nspec: &s {model: *s}", "stands within what it stands for"),
            ("[" * 3000, "nested too deeply"),
            ("kind: SpecDecodeDeployment\nspec: " + "[" * 900 + "]" * 900, "nested too deeply"),
        ],
    )
    def test_yaml_that_no_resource_is_made_of(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
    ) -> None:
        path = tmp_path / "odd.yaml"
        path.write_text(text)
        assert main(["validate", "-f", str(path)]) == 1
        (line,) = capsys.readouterr().out.splitlines()
        assert line.startswith(f"{path}: ")
        assert said in line

    def test_aliases_are_looked_at_once(self, tmp_path: Path) -> None:
        """Ten to the twentieth of leaves, were they written out."""
        path = tmp_path / "many.yaml"
        lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 21)]
        path.write_text("\n".join([*lines, "kind: SpecDecodeDeployment"]))
        assert not _in_itself(yaml.safe_load(path.read_text()), set(), set())

    def test_what_the_api_server_wrote_is_let_be(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Nulls that a tool leaves behind, and a status of another version, as in a file that was fetched."""
        nulls = dict.fromkeys(("annotations", "labels", "uid", "generation", "creationTimestamp", "namespace"))
        fetched = PLAIN | {"metadata": PLAIN["metadata"] | nulls, "status": {"conditions": "many", "stable": 3}}
        assert main(["validate", "-f", _write(tmp_path, fetched)]) == 0
        assert main(["render", "-f", _write(tmp_path, fetched)]) == 0
        capsys.readouterr()
        odd = PLAIN | {"metadata": PLAIN["metadata"] | {"generation": "many"}}
        assert main(["validate", "-f", _write(tmp_path, odd)]) == 1
        assert "metadata.generation" in capsys.readouterr().err

    def test_a_warning_fails_nothing(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = _write(tmp_path, changed({"spec.engine.image": "vllm:latest"}))
        assert main(["validate", "-f", path]) == 0
        out, err = capsys.readouterr()
        assert out == "plain: valid\n"
        assert err.startswith("warning: spec.engine.image: vllm:latest: ")

    def test_several_resources_are_told_apart(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        bad = changed({"metadata.name": "bad", "spec.speculation.depth": 0})
        path = _write(tmp_path, {"apiVersion": "v1", "kind": "Secret"}, PLAIN, None, bad)
        assert main(["validate", "-f", path]) == 1
        out, err = capsys.readouterr()
        assert [line.split(": ")[0] for line in out.splitlines()] == ["plain", "bad/spec.speculation.depth"]
        assert err == f"{path}: a Secret in it isn't checked\n"

    def test_a_list_is_taken_apart(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        listed = {"apiVersion": "v1", "kind": "List", "items": [PLAIN, changed({"metadata.name": "second"})]}
        assert main(["validate", "-f", _write(tmp_path, listed)]) == 0
        assert capsys.readouterr().out == "plain: valid\nsecond: valid\n"

    def test_standard_input(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(PLAIN)))
        assert main(["validate", "-f", "-"]) == 0
        assert capsys.readouterr().out == "plain: valid\n"

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("a: b: c\n", ": line 1, column 5: mapping values are not allowed here"),
            (
                "kind: SpecDecodeDeployment\nspec:\n  depth: 1\n  depth: 2\n",
                ": line 4, column 3: depth is there twice in one map: remove one of the two",
            ),
            ("", ": there is no SpecDecodeDeployment in it"),
            ("{kind: Secret}\n", ": there is no SpecDecodeDeployment in it, only Secret"),
            ("\t", ": line 1, column 1: "),
        ],
    )
    def test_files_that_hold_nothing_to_check(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
    ) -> None:
        path = tmp_path / "file.yaml"
        path.write_text(text)
        assert main(["validate", "-f", str(path)]) == 1
        assert capsys.readouterr().out.startswith(f"{path}{said}")

    def test_files_that_cannot_be_read(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["validate", "-f", str(tmp_path / "none.yaml")]) == 1
        assert "No such file or directory: name a file that can be read" in capsys.readouterr().out
        binary = tmp_path / "binary.yaml"
        binary.write_bytes(b"\xff\xfe")
        assert main(["validate", "-f", str(binary)]) == 1
        assert "isn't text in UTF-8 (byte 0)" in capsys.readouterr().out

    def test_a_date_is_text_as_for_the_api_server(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "dated.yaml"
        path.write_text(yaml.safe_dump(PLAIN).replace("name: plain", "name: plain\n  labels: {since: 2026-01-01}"))
        assert main(["validate", "-f", str(path)]) == 0
        assert capsys.readouterr().out == "plain: valid\n"

    def test_it_waits_for_no_cluster_client(self, plain: str) -> None:
        program = (
            "import sys\nfrom specdecode.cli.main import main\n"
            f"assert main(['validate', '-f', {plain!r}]) == 0\n"
            "print(sorted({'kopf', 'kubernetes', 'aiohttp', 'matplotlib', 'prometheus_client'} & set(sys.modules)))"
        )
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert ran.stdout == "plain: valid\n[]\n"


class TestRender:
    def test_every_object_of_the_revision(self, plain: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["render", "-f", plain, "-n", "models", "--router-image", "router:9"]) == 0
        objects = list(yaml.safe_load_all(capsys.readouterr().out))
        named = {(o["kind"], o["metadata"]["name"]) for o in objects}
        assert {
            ("StatefulSet", "plain-1-prefill"),
            ("StatefulSet", "plain-1-decode"),
            ("Deployment", "plain-1-router"),
            ("Service", "plain"),
            ("ControllerRevision", "plain-1"),
        } <= named
        assert {o["metadata"]["namespace"] for o in objects} == {"models"}
        router = next(o for o in objects if o["kind"] == "Deployment")
        assert {c["image"] for c in router["spec"]["template"]["spec"]["containers"]} == {"router:9"}

    def test_the_output_has_no_anchors(self, plain: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["render", "-f", plain]) == 0
        out = capsys.readouterr().out
        assert out.startswith("---\n")
        events = [event for event in yaml.parse(out) if isinstance(event, yaml.AliasEvent)]
        assert events == []

    def test_a_gateway_gets_a_route(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["render", "-f", str(EXAMPLES / "03-gateway.yaml")]) == 0
        kinds = [o["kind"] for o in yaml.safe_load_all(capsys.readouterr().out)]
        assert kinds.count("HTTPRoute") == 1

    def test_nothing_is_rendered_of_a_file_with_faults(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["render", "-f", _write(tmp_path, changed({"spec.speculation.depth": 0}), PLAIN)]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("error: plain/spec.speculation.depth: 0: ")


def _scrape(t: float, arm: str, drafts: int, rates: tuple[float, float, float]) -> dict[str, Any]:
    """Counters of one engine after ``drafts`` drafts of three tokens, accepted at each position by its rate."""
    positions = [round(drafts * rate) for rate in rates]
    return {
        "t": t,
        "arm": arm,
        "pod": arm,
        "engine": "0",
        "depth": 3,
        "drafts": drafts,
        "draft_tokens": 3 * drafts,
        "accepted": sum(positions),
        "accepted_per_pos": positions,
        "requests_finished": drafts // 10,
        "requests_failed": 0,
    }


HEALTHY = (0.9, 0.8, 0.7)
COLLAPSED = (0.05, 0.01, 0.0)


def _trace(tmp_path: Path, canary: tuple[float, float, float]) -> str:
    """Ten minutes of two arms beside each other."""
    lines = []
    for i in range(121):
        lines.append(_scrape(5.0 * i, "stable", 200 * i, HEALTHY))
        lines.append(_scrape(5.0 * i, "canary", 200 * i, canary))
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


class TestAnalyze:
    def test_a_collapse_fails(self, plain: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["analyze", "-f", plain, "--trace", _trace(tmp_path, COLLAPSED), "-o", "json"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert result["verdict"] == "Fail"
        assert result["at"] <= 60.0
        assert {"reason", "timeline", "passes"} <= set(result)
        assert all({"at", "verdict", "reason", "estimate", "interval"} <= set(look) for look in result["timeline"])

    def test_the_text_tells_how_it_came(self, plain: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["analyze", "-f", plain, "--trace", _trace(tmp_path, COLLAPSED)]) == 0
        first, blank, head, *looks = capsys.readouterr().out.splitlines()
        assert first.startswith("Fail (")
        assert blank == ""
        assert head.split() == ["AFTER", "VERDICT", "REASON", "CHANGE", "INTERVAL"]
        assert " Fail " in looks[-1]

    def test_alike_arms_do_not_fail(self, plain: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["analyze", "-f", plain, "--trace", _trace(tmp_path, HEALTHY), "-o", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["verdict"] in ("Pass", "Inconclusive")

    @pytest.mark.parametrize(
        ("traffic", "split", "verdict"),
        [
            ({}, None, "Inconclusive"),
            ({"gateway": {"parentRefs": [{"name": "g"}]}}, None, "Fail"),
            ({}, "request", "Fail"),
            ({"gateway": {"parentRefs": [{"name": "g"}]}}, "connection", "Inconclusive"),
        ],
    )
    def test_a_fall_is_judged_by_the_file_s_split_unless_the_trace_tells(
        self,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        traffic: dict[str, Any],
        split: str | None,
        verdict: str,
    ) -> None:
        trace = Path(_trace(tmp_path, (0.75, 0.6, 0.5)))
        if split is not None:
            told = [json.dumps(json.loads(line) | {"split": split}) for line in trace.read_text().splitlines()]
            trace.write_text("\n".join(told))
        path = _write(tmp_path, changed({"spec.traffic": traffic}))
        assert main(["analyze", "-f", path, "--trace", str(trace), "-o", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["verdict"] == verdict

    def test_a_plot(self, plain: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        picture = tmp_path / "timeline.svg"
        trace = _trace(tmp_path, COLLAPSED)
        assert main(["analyze", "-f", plain, "--trace", trace, "--plot", str(picture)]) == 0
        assert picture.read_text().count("<svg") == 1
        assert main(["analyze", "-f", plain, "--trace", trace, "--plot", str(tmp_path / "x.nonsense")]) == 2
        assert "--plot" in capsys.readouterr().err

    def test_a_line_that_is_malformed_is_named(
        self, plain: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "bad.jsonl"
        path.write_text(json.dumps(_scrape(0, "stable", 0, HEALTHY)) + "\n{]\n")
        assert main(["analyze", "-f", plain, "--trace", str(path)]) == 2
        assert "line 2" in capsys.readouterr().err

    def test_input_that_cannot_be_used(self, plain: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        trace = _trace(tmp_path, HEALTHY)
        assert main(["analyze", "-f", plain, "--trace", str(tmp_path / "none")]) == 2
        assert "can't be read" in capsys.readouterr().err
        assert main(["analyze", "-f", str(tmp_path / "none"), "--trace", trace]) == 2
        bad = _write(tmp_path, changed({"spec.speculation.depth": 0}), name="bad.yaml")
        assert main(["analyze", "-f", bad, "--trace", trace]) == 2
        assert "spec.speculation.depth: 0: " in capsys.readouterr().err
        two = _write(tmp_path, PLAIN, changed({"metadata.name": "second"}), name="two.yaml")
        assert main(["analyze", "-f", two, "--trace", trace]) == 2
        assert "holds 2 resources (plain, second): give a file with one" in capsys.readouterr().err
        empty = tmp_path / "empty.jsonl"
        empty.write_text("")
        assert main(["analyze", "-f", plain, "--trace", str(empty)]) == 2

    def test_a_trace_from_standard_input(
        self, plain: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(sys, "stdin", io.StringIO(Path(_trace(tmp_path, COLLAPSED)).read_text()))
        assert main(["analyze", "-f", plain, "--trace", "-"]) == 0
        assert capsys.readouterr().out.startswith("Fail (")


def test_an_unknown_verb_exits_2() -> None:
    with pytest.raises(SystemExit) as exited:
        main(["conquer"])
    assert exited.value.code == 2
