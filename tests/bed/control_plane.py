"""The bed itself: etcd, API server, controller-manager, scheduler and kwok on loopback addresses of its own.

with Bed() as bed:
    bed.kubectl("apply", "-f", "crds/")
    print(bed.kubeconfig)
"""

from __future__ import annotations

import contextlib
import csv
import os
import secrets
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from specdecode.api.names import CRD_NAME
from tests.bed import binaries, stages
from tests.bed.api import Api, ApiError, Endpoint, Json
from tests.bed.processes import BedError, Child, LoopbackNetwork, wait_for
from tests.bed.running import Running

ADMIN: Final = "bed:admin"
OPERATOR_NAMESPACE: Final = "specdecode-system"
OPERATOR: Final = f"system:serviceaccount:{OPERATOR_NAMESPACE}:specdecode-operator"
"""The ServiceAccount that the chart makes, with the permissions that it gives and no others."""
USERS: Final = (
    ADMIN,
    OPERATOR,
    "bed:controller-manager",
    "bed:scheduler",
    "bed:kwok",
    "bed:fleet",
    "bed:recorder",
)
"""Users with a token of their own: who wrote what is told apart in the audit log. All but the operator are cluster
admins."""

ROOT: Final = Path(__file__).parents[2]
"""Of the repository."""
_RELEASE: Final = ROOT / "deploy" / "specdecode-operator.yaml"
_PERMISSIONS: Final = ("Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
_POLICY = Path(__file__).parent / "audit_policy.yaml"
_WITHOUT_ENDPOINTS = "*,-endpointslice-controller,-endpoints-controller,-endpointslice-mirroring-controller"
"""Endpoints may not hold loopback addresses, so these controllers would only fail and try again."""


@dataclass(frozen=True)
class Settings:
    """What can be chosen about a bed.

    Attributes:
        nodes: how many simulated Nodes there are.
        gpus: allocatable `nvidia.com/gpu` of each.
        start_delay: from a Pod's address to Ready; a Go duration (so are the next two).
        stop_delay: from an engine Pod's deletion to its end.
        router_stop_delay: from a router Pod's deletion to its end.
    """

    nodes: int = 4
    gpus: int = 256
    start_delay: str = "300ms"
    stop_delay: str = "300ms"
    router_stop_delay: str = "1s"


class Bed(Running):
    """A running control plane. Start and stop it by `with`, or by `start()` and `stop()`, from one and the same thread
    (its processes die with the thread that started them).

    Attributes:
        kubeconfig: path of the admin's kubeconfig.
        audit_log: path of the API server's audit log, JSON lines.
        api: a client with the admin's rights.
        state: temporary folder that holds all of the bed's files, logs in `*.log`.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self._children: list[Child] = []
        self._tokens = {user: secrets.token_urlsafe(24) for user in USERS}
        self._opened = contextlib.ExitStack()

    def start(self) -> None:
        """Brings all of it up; some seconds, after the first build.

        Raises:
            BuildError: the programs could not be built.
            BedError: a component did not come up.
        """
        self.binaries = binaries.ensure()
        self.state = Path(tempfile.mkdtemp(prefix="specdecode-bed-"))
        self._opened.callback(shutil.rmtree, self.state, ignore_errors=True)
        try:
            self.network = LoopbackNetwork.take()
            self._opened.callback(self.network.release)
            self._start_api_server(self._start_etcd())
            self._start_controllers()
            self._make_nodes()
            self.install_permissions()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends all processes and removes all files; harmless when nothing runs."""
        for child in reversed(self._children):
            child.kill()  # nothing here is worth a graceful end
        self._children.clear()
        self._opened.close()

    def kubeconfig_of(self, user: str) -> Path:
        """Path of the kubeconfig of one of `USERS`."""
        return self._write_kubeconfig(user.replace(":", "-"), self._tokens[user])

    def client_of(self, user: str) -> Api:
        """A client that acts as one of `USERS`."""
        return Api(self._endpoint(self._tokens[user]))

    def service_account_kubeconfig(self, namespace: str, name: str) -> Path:
        """Path of a kubeconfig for a ServiceAccount that exists, with the rights that RBAC gives it; for a day."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 86400}}
        answer = self.api.request("POST", path, asked)
        return self._write_kubeconfig(f"sa-{namespace}-{name}", answer["status"]["token"])

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """What kubectl prints, run as the admin.

        Raises:
            BedError: it exits non-zero; the message holds what it said.
        """
        ran = subprocess.run(
            [self.binaries.path("kubectl"), *arguments],
            env=os.environ | {"KUBECONFIG": str(self.kubeconfig)},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=400,
        )
        if ran.returncode:
            raise BedError(f"kubectl {' '.join(arguments)} exited with {ran.returncode}: {ran.stderr.strip()}")
        return ran.stdout

    def namespace(self, name: str) -> str:
        """Creates a namespace in which Pods can be made at once, and returns its name."""
        self.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        account = lambda: self.api.find("ServiceAccount", name, "default")  # noqa: E731
        wait_for(f"the default ServiceAccount of namespace {name}", account, 60, self._children)
        return name

    def install_gateway_api(self) -> None:
        """Installs the Gateway API's CRDs (standard channel)."""
        self.kubectl("apply", "--server-side", "-f", str(self.binaries.gateway_api))
        self._wait_established("httproutes.gateway.networking.k8s.io")

    def install_crds(self) -> None:
        """Installs the project's own CRDs, as committed in crds/."""
        self.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
        self._wait_established(CRD_NAME)

    def _wait_established(self, crd: str) -> None:
        # kubectl wait fails on a CRD so new that its conditions are null
        established = lambda: is_true(self.api.get("CustomResourceDefinition", None, crd), "Established")  # noqa: E731
        wait_for(f"CRD {crd} to be established", established, 30, self._children)

    def install_permissions(self) -> None:
        """Gives the operator what the chart gives it."""
        for obj in yaml.safe_load_all(_RELEASE.read_text()):
            if obj["kind"] in _PERMISSIONS:
                self.api.apply(obj)

    def set_gpus(self, gpus: int) -> None:
        """Changes the GPUs that each Node has; Pods that run stay where they are."""
        for node in self.api.list("Node"):
            self._set_capacity(node["metadata"]["name"], gpus)

    def lose_node(self, name: str) -> None:
        """A Node's machine is gone: it is reported as unreachable at once, and its Pods neither change nor end."""
        self.api.merge("Node", None, name, {"spec": {"unschedulable": True}})
        self._annotate_pods(name, stages.LOST)
        self.api.annotate("Node", None, name, **{stages.ANNOTATION_LOST: "true"})

    def restore_node(self, name: str) -> None:
        """The machine that `lose_node` took away is back, with its Pods."""
        self.api.annotate("Node", None, name, **{stages.ANNOTATION_LOST: None})
        self._annotate_pods(name, None)
        self.api.merge("Node", None, name, {"spec": {"unschedulable": False}})

    def _annotate_pods(self, node: str, fault: str | None) -> None:
        for pod in self.api.list("Pod"):
            meta = pod["metadata"]
            if pod["spec"].get("nodeName") != node:
                continue
            try:
                self.api.annotate("Pod", meta["namespace"], meta["name"], **{stages.ANNOTATION_FAULT: fault})
            except ApiError as error:
                # Of another test, and gone since it was listed.
                if error.code != 404:
                    raise

    def children(self) -> dict[str, Child]:
        """The running processes by name, for measuring them."""
        return {child.name: child for child in self._children}

    def _run(self, name: str, *arguments: str) -> Child:
        command = [self.binaries.path(name), *arguments]
        child = Child.start(name, command, self.state / f"{name}.log", cwd=self.state)
        self._children.append(child)
        return child

    def _start_etcd(self) -> str:
        clients, peers = (f"http://{self.network.host}:{self.network.free_port()}" for _ in range(2))
        self._run(
            "etcd",
            f"--data-dir={self.state / 'etcd'}",
            f"--listen-client-urls={clients}",
            f"--advertise-client-urls={clients}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )
        return clients

    def _start_api_server(self, etcd: str) -> None:
        key = self.state / "service-account.key"
        subprocess.run([self.binaries.path("kube"), "service-account-key", str(key)], check=True)
        tokens = self.state / "tokens.csv"
        with tokens.open("w", newline="") as out:
            csv.writer(out).writerows([token, user, user, _groups(user)] for user, token in self._tokens.items())
        self.audit_log = self.state / "audit.log"
        port = self.network.free_port()
        server = self._run(
            "kube-apiserver",
            f"--etcd-servers={etcd}",
            f"--bind-address={self.network.host}",
            f"--advertise-address={self.network.host}",
            f"--secure-port={port}",
            "--endpoint-reconciler-type=none",
            f"--cert-dir={self.state / 'pki'}",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.96.0.0/16",
            f"--token-auth-file={tokens}",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged",
            f"--audit-policy-file={_POLICY}",
            f"--audit-log-path={self.audit_log}",
            "--audit-log-maxsize=10000",  # megabytes: no rotation, which readers would have to follow
        )
        certificate = self.state / "pki" / "apiserver.crt"
        wait_for("the API server's certificate", certificate.is_file, 120, [server])
        self.server = f"https://{self.network.host}:{port}"
        self._certificate = certificate
        wait_for("the API server", self._is_ready, 240, [server])
        self.kubeconfig = self.kubeconfig_of(ADMIN)
        self.api = Api(Endpoint.from_kubeconfig(self.kubeconfig))

    def _is_ready(self) -> bool:
        try:
            self.client_of(ADMIN).request("GET", "/readyz", timeout=2)
        except (OSError, ApiError):
            return False
        return True

    def _start_controllers(self) -> None:
        self._run(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig_of('bed:controller-manager')}",
            f"--service-account-private-key-file={self.state / 'service-account.key'}",
            f"--root-ca-file={self._certificate}",
            f"--controllers={_WITHOUT_ENDPOINTS}",
            "--leader-elect=false",
            "--secure-port=0",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
            "--concurrent-statefulset-syncs=20",
            "--concurrent-deployment-syncs=20",
            "--concurrent-replicaset-syncs=20",
            "--node-monitor-period=1s",
        )
        self._run(
            "kube-scheduler",
            f"--kubeconfig={self.kubeconfig_of('bed:scheduler')}",
            "--leader-elect=false",
            "--secure-port=0",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
        )
        written = self.state / "stages.yaml"
        chosen = stages.stages(self.settings.start_delay, self.settings.stop_delay, self.settings.router_stop_delay)
        written.write_text(stages.to_yaml(chosen))
        self._run(
            "kwok",
            f"--kubeconfig={self.kubeconfig_of('bed:kwok')}",
            f"--config={written}",
            f"--cidr={self.network.pods}",
            f"--node-ip={self.network.host}",
            "--manage-all-nodes=true",
            "--node-lease-duration-seconds=40",  # 0, its default, lets Nodes seem dead after a while
        )

    def _make_nodes(self) -> None:
        for index in range(self.settings.nodes):
            name = f"node-{index}"
            self.api.create(
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": {
                        "name": name,
                        "labels": {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": f"zone-{index % 2}"},
                    },
                }
            )
            self._set_capacity(name, self.settings.gpus)
        wait_for("Ready Nodes and the first ServiceAccount", self._can_run_pods, 180, self._children)

    def _set_capacity(self, node: str, gpus: int) -> None:
        capacity = {"cpu": "1000", "memory": "8Ti", "pods": "1000", "nvidia.com/gpu": str(gpus)}
        status = {"status": {"capacity": capacity, "allocatable": capacity}}
        self.api.merge("Node", None, node, status, subresource="status")

    def _can_run_pods(self) -> bool:
        nodes = self.api.list("Node")
        untainted = all(not node["spec"].get("taints") for node in nodes)
        ready = sum(is_true(node, "Ready") for node in nodes) == self.settings.nodes
        return untainted and ready and self.api.find("ServiceAccount", "default", "default") is not None

    def _endpoint(self, token: str) -> Endpoint:
        return Endpoint(self.server, token, self._certificate.read_text())

    def _write_kubeconfig(self, name: str, token: str) -> Path:
        path = self.state / f"{name}.kubeconfig"
        path.write_text(self._endpoint(token).to_kubeconfig())
        path.chmod(0o600)
        return path


def _groups(user: str) -> str:
    """As the API server sees the holder of a ServiceAccount's token; cluster admins the others."""
    if user == OPERATOR:
        return f"system:serviceaccounts,system:serviceaccounts:{OPERATOR_NAMESPACE}"
    return "system:masters"


def is_true(obj: Json, condition: str) -> bool:
    """Whether the object's status has this condition with status True."""
    conditions = obj.get("status", {}).get("conditions") or []
    return any(found["type"] == condition and found["status"] == "True" for found in conditions)
