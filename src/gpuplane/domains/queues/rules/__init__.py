"""Queues as values, the doors through which work enters them, and how they are kept."""

from gpuplane.core.quota.quantities import quantity_text
from gpuplane.domains.queues.rules.doors import (
    DEFAULT_QUEUE,
    QueueSpecs,
    choose_common_queue,
    default_door,
    default_specs,
    door_names,
    find_door,
    grants,
    known_doors,
)
from gpuplane.domains.queues.rules.encoding import (
    cluster_queue_of,
    cohort_of,
    encode_cluster_queue,
    encode_cohort,
    encode_limits,
    limits_of,
)
from gpuplane.domains.queues.rules.levels import find_laid_out, find_level
from gpuplane.domains.queues.rules.naming import find_misspelt_flavor, find_unknown_model

__all__ = [
    "DEFAULT_QUEUE",
    "QueueSpecs",
    "choose_common_queue",
    "cluster_queue_of",
    "cohort_of",
    "default_door",
    "default_specs",
    "door_names",
    "encode_cluster_queue",
    "encode_cohort",
    "encode_limits",
    "find_door",
    "find_laid_out",
    "find_level",
    "find_misspelt_flavor",
    "find_unknown_model",
    "grants",
    "known_doors",
    "limits_of",
    "quantity_text",
]
