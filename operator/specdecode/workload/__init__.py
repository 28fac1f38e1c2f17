"""Kubernetes objects: what to apply, what stands, and whether the two differ. Pure; manifests are plain mappings.

render(resource, router_image=...)                 # the part of a revision that is frozen with it
controller_revision(resource, record)              # its record, to be created (never applied)
desired(resource, plan, records, access)           # every other object of a plan, for server-side apply
observe(resource, objects, lost_nodes=..., now=...) # records, arms, route and conflicts from raw objects
changed(desired, live)                             # whether applying would change anything
handover(desired, live)                            # what to apply first when replicas pass to an autoscaler
preview(resource, router_image=...)                # all objects of a first revision, without a cluster
"""

from .diff import changed, handover
from .networkpolicy import Access
from .objects import desired, preview
from .observe import Observed, observe
from .render import render
from .revision import controller_revision, record

__all__ = [
    "Access",
    "Observed",
    "changed",
    "controller_revision",
    "desired",
    "handover",
    "observe",
    "preview",
    "record",
    "render",
]
