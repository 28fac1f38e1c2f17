"""Let NIXL's progress thread sleep while nothing comes: ``cpu_nixl.py SITE_PACKAGES``.

NIXL's Python API tells UCX to poll without a pause, and no setting reaches that. A GPU's host can spare the core; an
engine that computes on it can't: an idle one keeps a core busy.
"""

from __future__ import annotations

import sys
from pathlib import Path

POLLING = "agent_config.pthrDelay = 0\n"
SLEEPING = "agent_config.pthrDelay = 1000\n"  # microseconds; a message ends the sleep


def let_sleep(site: Path) -> bool:
    """Change the installed package of each CUDA version; a second time changes nothing.

    Returns:
        Whether every installed package sleeps now, and there is one.
    """
    found = list(site.glob("nixl_cu*/_api.py"))
    for api in found:
        api.write_text(api.read_text().replace(POLLING, SLEEPING))
    return bool(found) and all(SLEEPING in api.read_text() for api in found)


if __name__ == "__main__":
    if not let_sleep(Path(sys.argv[1])):
        sys.exit(f"no nixl_cu*/_api.py under {sys.argv[1]} with {POLLING.strip()!r}: NIXL has changed, see here")
