"""Addresses, folders and the configuration files of a node's programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from tests.bed.binaries import cache_root

NAME: Final = "node-1"
ADDRESS: Final = "10.200.0.1"
"""Of the node, in a network namespace of its own."""
PODS: Final = "10.244.0.0/24"
SERVICES: Final = "10.96.0.0/24"
DNS: Final = "10.96.0.10"
API_PORT: Final = 6443
SERVER: Final = f"https://{ADDRESS}:{API_PORT}"
CGROUP: Final = "specdecode-node"
"""The parent of all Pods' cgroups."""
SYSTEM_CGROUP: Final = "specdecode-node-system"
"""Of the node's own programs, as a distribution's system.slice."""
COVERED: Final = ("/run", "/var/log", "/var/lib/cni", "/var/lib/kubelet")
"""Folders of the machine that programs write to whatever they are told; the node has empty ones instead."""
SANDBOX_IMAGE: Final = "localhost/probe:1"
DNS_IMAGE: Final = "localhost/coredns:1"
STAND_IN_IMAGE: Final = "localhost/standin:0.32.0"
"""In place of vLLM: programs/standin."""


def run_folder() -> Path:
    """Everything of the node that is up: state, logs, sockets. Gone when it is down."""
    return cache_root() / "node" / "run"


def image_folder() -> Path:
    """containerd's own, which outlives a node so that images are unpacked once."""
    return cache_root() / "node" / "containerd"


def state_file() -> Path:
    """Describes the node that is up."""
    return run_folder() / "node.json"


def network(run: Path) -> str:
    """CNI: one bridge, addresses of one /24, and a way out to the node itself alone."""
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": f"{run}/addresses",
            "ranges": [[{"subnet": PODS}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    return json.dumps({"cniVersion": "1.0.0", "name": "node", "plugins": [bridge]})


def containerd(run: Path, root: Path) -> str:
    """containerd's configuration.

    ``restrict_oom_score_adj``: a machine that lacks CAP_SYS_RESOURCE could start no sandbox otherwise.
    """
    return f"""\
version = 3
root = "{root}"
state = "{run}/containerd"
[grpc]
address = "{run}/containerd.sock"
[plugins.'io.containerd.internal.v1.opt']
path = "{run}/opt"
[plugins.'io.containerd.cri.v1.images']
snapshotter = "overlayfs"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{SANDBOX_IMAGE}"
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
SystemdCgroup = false
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["/usr/lib/cni"]
conf_dir = "{run}/cni"
"""


def kubelet(run: Path) -> str:
    """The kubelet's configuration (JSON is YAML). It is reachable within the node's network namespace alone."""
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{CGROUP}",
            "containerRuntimeEndpoint": f"unix://{run}/containerd.sock",
            "failSwapOn": False,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "clusterDomain": "cluster.local",
            "clusterDNS": [DNS],
            "resolvConf": "/dev/null",
            "podLogsDir": f"{run}/pods",
            "volumePluginDir": f"{run}/volume-plugins",
            "localStorageCapacityIsolation": False,
            # The disk is not ours alone, and images are kept for the next node.
            "evictionHard": {"memory.available": "200Mi"},
            "imageGCHighThresholdPercent": 100,
            "registryPullQPS": 0,
        }
    )
