"""Runs within the node's namespaces: sets up its network, starts its programs and watches them until SIGTERM.

`python -m tests.node.supervisor`, started by `node.up` under `unshare` and `tini`: whatever this process leaves behind
ends with the PID namespace.
"""

from __future__ import annotations

import csv
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import yaml

from tests.bed import binaries
from tests.bed.api import Api, ApiError, Endpoint
from tests.bed.control_plane import is_true
from tests.bed.processes import BedError, Child, wait_for
from tests.node import images, programs, settings
from tests.node.settings import ADDRESS, API_PORT, NAME, PODS, SERVER, SERVICES

_ADMIN: Final = "node:admin"
_GROUPS: Final = {
    _ADMIN: "system:masters",
    "system:kube-controller-manager": "",
    "system:kube-scheduler": "",
    "system:kube-proxy": "",
    f"system:node:{NAME}": "system:nodes",
    "node:kube-router": "system:masters",
}
"""Users by name, with their groups: each program has no more rights than Kubernetes' own roles give it."""
_ETCD: Final = "http://127.0.0.1:2379"
_PEERS: Final = "http://127.0.0.1:2380"
_MANIFESTS: Final = Path(__file__).parent / "manifests"


class Supervisor:
    """The programs of one node."""

    def __init__(self) -> None:
        self.run = settings.run_folder()
        self.programs = programs.ensure()
        self._children: list[Child] = []
        self._tokens = {user: secrets.token_urlsafe(24) for user in _GROUPS}
        self.ctr = images.Ctr(self.programs["ctr"], self.run / "containerd.sock")

    def start(self) -> None:
        """Brings all of it up.

        Raises:
            BedError: a program ended, or something did not come up.
        """
        self._network()
        self._start_containerd()
        self._start_control_plane()
        for archive in images.base_archives():
            self.ctr.load(archive)
        self._start_node()
        self._apply_manifests()
        self._write_state()

    def watch(self) -> None:
        """Returns never.

        Raises:
            BedError: a program ended.
        """
        while True:
            for child in self._children:
                child.check()
            time.sleep(1)

    def _network(self) -> None:
        # A veth pair, since not every kernel has links of type dummy.
        for words in (
            "link set lo up",
            "link add node0 type veth peer name node1",
            f"address add {ADDRESS}/24 dev node0",
            "link set node0 up",
            "link set node1 up",
            "route add default dev node0",
        ):
            subprocess.run(["ip", *words.split()], check=True)
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        subprocess.run(["mount", "--make-rshared", "/"], check=True)
        for folder in settings.COVERED:
            subprocess.run(["mount", "-t", "tmpfs", "node", folder], check=True)

    def _start(self, name: str, *arguments: str) -> Child:
        # containerd looks for its shim on PATH.
        path = f"{self.programs['containerd-shim-runc-v2'].parent}:{os.environ['PATH']}"
        command = [str(self.programs[name]), *arguments]
        child = Child.start(name, command, self.run / f"{name}.log", cwd=self.run, env=os.environ | {"PATH": path})
        self._children.append(child)
        return child

    def _start_containerd(self) -> None:
        folder = settings.image_folder()
        folder.mkdir(parents=True, exist_ok=True)
        (self.run / "cni").mkdir()
        (self.run / "cni" / "node.conflist").write_text(settings.network(self.run))
        config = self.run / "containerd.toml"
        config.write_text(settings.containerd(self.run, folder))
        self._start("containerd", f"--config={config}")

    def _start_control_plane(self) -> None:
        run = self.run
        self._start(
            "etcd",
            f"--data-dir={run / 'etcd'}",
            f"--listen-client-urls={_ETCD}",
            f"--advertise-client-urls={_ETCD}",
            f"--listen-peer-urls={_PEERS}",
            f"--initial-advertise-peer-urls={_PEERS}",
            f"--initial-cluster=default={_PEERS}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )
        key = run / "service-account.key"
        subprocess.run([self.programs["kube"], "service-account-key", str(key)], check=True)
        with (run / "tokens.csv").open("w", newline="") as out:
            csv.writer(out).writerows([self._tokens[user], user, user, groups] for user, groups in _GROUPS.items())
        self._start(
            "kube-apiserver",
            f"--etcd-servers={_ETCD}",
            f"--advertise-address={ADDRESS}",
            f"--secure-port={API_PORT}",
            f"--cert-dir={run / 'pki'}",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-cluster-ip-range={SERVICES}",
            f"--token-auth-file={run / 'tokens.csv'}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--kubelet-preferred-address-types=InternalIP",
            "--allow-privileged",
        )
        certificate = run / "pki" / "apiserver.crt"
        wait_for("the API server's certificate", certificate.is_file, 120, self._children)
        self._certificate = certificate.read_text()
        self.api = Api(self._endpoint(_ADMIN))
        wait_for("the API server", self._is_ready, 240, self._children)
        self._start(
            "kube-controller-manager",
            f"--kubeconfig={self._kubeconfig('system:kube-controller-manager')}",
            f"--service-account-private-key-file={key}",
            "--use-service-account-credentials",
            f"--root-ca-file={certificate}",
            "--leader-elect=false",
            "--secure-port=0",
        )
        self._start(
            "kube-scheduler",
            f"--kubeconfig={self._kubeconfig('system:kube-scheduler')}",
            "--leader-elect=false",
            "--secure-port=0",
        )

    def _start_node(self) -> None:
        config = self.run / "kubelet.yaml"
        config.write_text(settings.kubelet(self.run))
        self._start(
            "kubelet",
            f"--config={config}",
            f"--kubeconfig={self._kubeconfig(f'system:node:{NAME}')}",
            f"--root-dir={self.run / 'kubelet'}",
            f"--hostname-override={NAME}",
            f"--node-ip={ADDRESS}",
        )
        self._start(
            "kube-proxy",
            f"--kubeconfig={self._kubeconfig('system:kube-proxy')}",
            f"--hostname-override={NAME}",
            "--proxy-mode=iptables",
            f"--cluster-cidr={PODS}",
            "--conntrack-max-per-core=0",  # the machine's, not this namespace's
        )
        wait_for("the node to be registered", lambda: self.api.find("Node", None, NAME), 120, self._children)
        self._start(
            "kube-router",
            f"--kubeconfig={self._kubeconfig('node:kube-router')}",
            "--run-router=false",
            "--run-service-proxy=false",
            "--run-firewall=true",
            f"--hostname-override={NAME}",
            f"--service-cluster-ip-range={SERVICES}",
            "--health-port=0",
        )
        wait_for(
            "the node to be Ready", lambda: is_true(self.api.get("Node", None, NAME), "Ready"), 180, self._children
        )

    def _apply_manifests(self) -> None:
        kubectl = [str(self.programs["kubectl"]), f"--kubeconfig={self._kubeconfig(_ADMIN)}"]
        subprocess.run([*kubectl, "apply", "--server-side", "-f", str(binaries.ensure().gateway_api)], check=True)
        for file in sorted(_MANIFESTS.glob("*.yaml")):
            for obj in yaml.safe_load_all(file.read_text()):
                self.api.apply(obj, manager="node")
        dns = lambda: is_true(self.api.get("Deployment", "kube-system", "coredns"), "Available")  # noqa: E731
        wait_for("the cluster's DNS", dns, 180, self._children)

    def _write_state(self) -> None:
        described = {
            "kubeconfig": str(self._kubeconfig(_ADMIN)),
            "kubectl": str(self.programs["kubectl"]),
            "ctr": str(self.programs["ctr"]),
            "socket": str(self.run / "containerd.sock"),
        }
        written = settings.state_file().with_suffix(".new")
        written.write_text(json.dumps(described, indent=1))
        written.rename(settings.state_file())

    def _is_ready(self) -> bool:
        try:
            self.api.request("GET", "/readyz", timeout=2)
        except (OSError, ApiError):
            return False
        return True

    def _endpoint(self, user: str) -> Endpoint:
        return Endpoint(SERVER, self._tokens[user], self._certificate)

    def _kubeconfig(self, user: str) -> Path:
        path = self.run / f"{user.replace(':', '-')}.kubeconfig"
        path.write_text(self._endpoint(user).to_kubeconfig())
        path.chmod(0o600)
        return path


def main() -> int:
    """Up, and watched until the end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    supervisor = Supervisor()
    try:
        supervisor.start()
        supervisor.watch()
    except (BedError, ApiError, OSError, subprocess.SubprocessError) as error:
        print(f"node: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
