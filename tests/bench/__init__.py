"""Benchmarks on the control plane of tests/bed with the real operator. `tests/cluster` runs them reduced."""
