from __future__ import annotations

import pytest

from specdecode import main
from specdecode.workload import Access


def test_the_defaults() -> None:
    opts = main.options([], {})
    assert (opts.namespaces, opts.leader_elect, opts.workers) == ((), True, 4)
    assert (opts.metrics_host, opts.metrics_port) == ("127.0.0.1", 8081)
    assert (opts.lease.name, opts.lease.duration) == ("specdecode-operator", 15.0)


def test_arguments_win_over_variables() -> None:
    environ = {
        "SPECDECODE_LEASE_NAME": "by-env",
        "SPECDECODE_WORKERS": "7",
        "SPECDECODE_NAMESPACE": "a,b",
        "SPECDECODE_LEADER_ELECT": "false",
        "SPECDECODE_METRICS_BIND": "[::]:9000",
    }
    opts = main.options(["--workers", "2", "--namespace", "c", "--namespace", "d"], environ)
    assert (opts.lease.name, opts.workers, opts.namespaces) == ("by-env", 2, ("c", "d"))
    assert (opts.metrics_host, opts.metrics_port, opts.leader_elect) == ("::", 9000, False)
    assert main.options([], environ).namespaces == ("a", "b")
    assert main.options(["--leader-elect"], environ).leader_elect is True


def test_network_policies_are_made_when_asked_for_or_in_a_pod() -> None:
    assert main.options([], {}).access is None
    asked = main.options(["--network-policies", "--monitoring-namespace", "monitoring"], {})
    assert asked.access == Access("default", ("monitoring",))
    environ = {"SPECDECODE_NETWORK_POLICIES": "true", "SPECDECODE_MONITORING_NAMESPACE": "a,b"}
    assert main.options([], environ).access == Access("default", ("a", "b"))
    assert main.options(["--no-network-policies"], environ).access is None


def test_two_processes_have_two_identities() -> None:
    assert main.options([], {}).lease.identity != main.options([], {}).lease.identity


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["--metrics-bind", "8081"], "--metrics-bind '8081': give host:port"),
        (["--metrics-bind", "host:port"], "give host:port"),
        (["--metrics-bind", "host:70000"], "give host:port"),
        (["--workers", "0"], "--workers 0: give 1 or more"),
        (["--resync", "1"], "--resync 1.0: give 10 or more"),
        (["--lease-duration", "5"], "--lease-duration 5 is too short"),
        (["--log-format", "xml"], "invalid choice: 'xml'"),
    ],
)
def test_what_is_wrong_is_named_with_its_remedy(argv: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main.options(argv, {})
    assert caught.value.code == 2
    assert why in capsys.readouterr().err
