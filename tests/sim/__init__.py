"""Simulated traffic and the bench of the acceptance analysis."""
