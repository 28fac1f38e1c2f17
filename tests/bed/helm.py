"""Builds helm from its Go modules, each version once, into the bed's cache; what the tests of the chart run."""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.bed import binaries
from tests.bed.binaries import KUBERNETES, SOURCES, cache_root

VERSIONS: Final = {"3": "3.22.0", "4": "4.3.1"}
"""Tested versions by their major; the modules are in helm3/ and helm4/."""


def _flags(major: str) -> list[str]:
    minor = KUBERNETES.split(".")[1]
    stamped = {f"helm.sh/helm/v{major}/internal/version.version": f"v{VERSIONS[major]}"}
    if major == "3":
        # What `helm template` takes for the cluster's version; without them it is Kubernetes 1.20.
        for package in ("chartutil", "lint/rules"):
            stamped |= {
                f"helm.sh/helm/v3/pkg/{package}.k8sVersionMajor": "1",
                f"helm.sh/helm/v3/pkg/{package}.k8sVersionMinor": minor,
            }
    values = " ".join(f"-X {name}={value}" for name, value in stamped.items())
    return ["-trimpath", "-buildvcs=false", "-ldflags", f"-s -w {values}"]


def _key(major: str) -> str:
    digest = hashlib.sha256()
    for path in sorted((SOURCES / f"helm{major}").iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    digest.update(" ".join(_flags(major)).encode())
    return digest.hexdigest()[:16]


def ensure(major: str, say: Callable[[str], None] | None = None) -> Path:
    """The `helm` of one major version, built now (some minutes) if the cache doesn't hold it.

    Args:
        major: a key of `VERSIONS`.
        say: takes a line of progress; by default it is printed to stderr.

    Raises:
        BuildError: no Go, or the build failed.
    """
    say = say or binaries.print_progress
    root = cache_root() / "helm"
    helm = root / f"{major}-{_key(major)}" / "helm"
    if helm.is_file():
        return helm
    root.mkdir(parents=True, exist_ok=True)
    with binaries.locked(root / f"build-{major}.lock", say):
        if helm.is_file():  # another process built it while we waited
            return helm
        scratch = Path(tempfile.mkdtemp(prefix="building-", dir=root))
        try:
            binaries.compile_module(
                binaries.find_go(say),
                SOURCES / f"helm{major}",
                f"helm.sh/helm/v{major}/cmd/helm",
                scratch / "helm",
                f"helm {VERSIONS[major]}",
                say,
                flags=_flags(major),
            )
            scratch.chmod(0o755)
            scratch.rename(helm.parent)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return helm


def main() -> int:
    """Print where the helm of a major version is, after building it if need be."""
    parser = argparse.ArgumentParser(prog="python -m tests.bed.helm", description=main.__doc__)
    parser.add_argument("major", choices=sorted(VERSIONS))
    try:
        print(ensure(parser.parse_args().major))
    except binaries.BuildError as error:
        print(f"helm: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
