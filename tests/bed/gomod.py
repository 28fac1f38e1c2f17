"""Rewrites tests/bed/kube/go.mod and go.sum for another Kubernetes version: `python -m tests.bed.gomod 1.37.2`.

The module k8s.io/kubernetes replaces its sister modules by folders (./staging/...) that are no part of the module, so
whoever builds on it has to point each of them at the version published beside it (Kubernetes 1.X.Y, modules 0.X.Y).
"""

import json
import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "kube"
KWOK = "sigs.k8s.io/kwok/cmd/kwok@v0.8.0"


def sister_modules(go_mod: str) -> list[str]:
    """The modules that k8s.io/kubernetes' own go.mod replaces by a folder of its repository."""
    return sorted(set(re.findall(r"^\s*(k8s\.io/[\w-]+) => \./staging/", go_mod, re.MULTILINE)))


def go_mod(kubernetes: str, sisters: list[str]) -> str:
    """The text of our go.mod before `go mod tidy` fills in the indirect requirements."""
    published = "v0." + kubernetes.split(".", 1)[1]
    replaced = "".join(f"\t{module} => {module} {published}\n" for module in sisters)
    return (
        "module specdecode.dev/bed/kube\n\ngo 1.26.0\n\ngodebug default=go1.26\n\n"
        f"require k8s.io/kubernetes v{kubernetes}\n\nreplace (\n{replaced})\n"
    )


def main() -> None:
    kubernetes = sys.argv[1]
    described = subprocess.run(
        ["go", "mod", "download", "-json", f"k8s.io/kubernetes@v{kubernetes}"], check=True, capture_output=True, cwd="/"
    ).stdout
    theirs = Path(json.loads(described)["GoMod"]).read_text()
    (FOLDER / "go.mod").write_text(go_mod(kubernetes, sister_modules(theirs)))
    subprocess.run(["go", "get", "-tool", KWOK], check=True, cwd=FOLDER)
    subprocess.run(["go", "mod", "tidy"], check=True, cwd=FOLDER)


if __name__ == "__main__":
    main()
