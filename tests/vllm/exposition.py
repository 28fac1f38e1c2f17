"""Sums of series in a Prometheus exposition, for scripts that run where the operator's scraper isn't installed."""

from __future__ import annotations


def counter(text: str, name: str, **labels: str) -> float:
    """Sum of the series of this name that have these labels; 0 where there is none."""
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    lines = [line for line in text.splitlines() if line.startswith((name + "{", name + " "))]
    return sum(float(line.rpartition(" ")[2]) for line in lines if all(label in line for label in wanted))
