"""What the machine must bring: root, some Debian packages, a kernel that can."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from tests.bed.processes import BedError

PACKAGES: Final = {
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "buildah": "buildah",
    "debootstrap": "debootstrap",
    "ip": "iproute2",
    "ipset": "ipset",
    "iptables": "iptables",
    "nsenter": "util-linux",
    "runc": "runc",
    "tini": "tini",
    "unshare": "util-linux",
}
"""Programs that are run, and the Debian package of each."""


class NeedsError(BedError):
    """The machine can't run a node; the message says what is missing and what to do."""


def check() -> None:
    """Look for all of it.

    Raises:
        NeedsError: something is missing.
    """
    if os.geteuid() != 0:
        raise NeedsError("a node needs root (containers, network namespaces): run it as root, with sudo -E for example")
    missing = sorted({package for program, package in PACKAGES.items() if shutil.which(program) is None})
    if missing:
        raise NeedsError(f"Debian packages are missing: apt-get install --no-install-recommends {' '.join(missing)}")
    if not Path("/proc/sys/net/bridge/bridge-nf-call-iptables").exists():
        # Without it Pods behind one bridge reach each other past every Service address and NetworkPolicy.
        raise NeedsError("the kernel's br_netfilter is missing: modprobe br_netfilter")
    if not any("overlay" in line.split() for line in Path("/proc/filesystems").read_text().splitlines()):
        raise NeedsError("the kernel's overlay file system is missing: modprobe overlay")
