"""A metrics page of vLLM in its full size, from one that a real engine served.

The page that is kept (``tests/unit/chart/vllm-0.32.0.txt``) has every family of a real one, but only the first and
the last bucket of each histogram; here the buckets between are put back until the page has the size asked for.
"""

from __future__ import annotations

import re
from pathlib import Path

_KEPT = Path(__file__).parents[1] / "unit" / "chart" / "vllm-0.32.0.txt"
_BUCKET = re.compile(r'^(\S+_bucket\{.*le=")([^"]+)(".*)$')


def full_page(size: int = 100_000) -> str:
    """The page with evenly more buckets, at least ``size`` bytes."""
    lines = [line for line in _KEPT.read_text().splitlines() if not line.startswith("# A ")]
    more = 0
    while True:
        out: list[str] = []
        for line in lines:
            out.append(line)
            found = _BUCKET.match(line)
            if found and found[2] != "+Inf":
                out += [f"{found[1]}{float(found[2]) * (2 + k):g}{found[3]}" for k in range(more)]
        page = "\n".join(out) + "\n"
        if len(page) >= size:
            return page
        more += 1
