"""Calls of one user a minute: as many as are set, then a Retry-After that holds."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from gpuplane.api.limits import Limits, RateBuckets
from gpuplane.domains.clusters.endpoints import registering
from gpuplane.domains.nodes import endpoints as nodes
from gpuplane.entry.assembling import limits_of
from gpuplane.entry.settings import Settings
from gpuplane.kit.access import rate_limit_of
from gpuplane.kit.errors import TooManyRequests
from tests.clocks import FakeClock

ADA, BOB = UUID(int=1), UUID(int=2)
LIMITS = {"registrations": 10, "deployments": 5, "node_reads": 100}
"""The rows of the cluster service's design document, 5.1."""


def refused(buckets: RateBuckets, limit: str, user: UUID = ADA) -> int:
    """Return after how many seconds a call that is refused may be made."""
    with pytest.raises(TooManyRequests) as caught:
        buckets.take(limit, user)
    assert caught.value.code == "rate_limit"
    assert caught.value.retry_after_s is not None
    return caught.value.retry_after_s


def test_the_figures_of_the_design_document_are_those_that_hold_unless_others_are_set() -> None:
    assert limits_of(Settings()).per_minute == LIMITS


@pytest.mark.parametrize(
    ("endpoint", "limit"),
    [
        (registering.register_cluster, "registrations"),
        (registering.register_again, "registrations"),
        (registering.replace_credentials, "registrations"),
        (registering.adopt_addon, "deployments"),
        (nodes.list_nodes, "node_reads"),
    ],
)
def test_each_endpoint_counts_to_its_limit(endpoint: Callable[..., object], limit: str) -> None:
    assert rate_limit_of(endpoint) == limit


@pytest.mark.parametrize("limit", sorted(LIMITS))
async def test_a_user_may_make_so_many_calls_and_the_next_when_it_is_told(limit: str) -> None:
    clock = FakeClock()
    buckets = RateBuckets(Limits(per_minute=LIMITS), clock)
    for _ in range(LIMITS[limit]):
        buckets.take(limit, ADA)
    wait_s = refused(buckets, limit)
    assert wait_s == -(-60 // LIMITS[limit])
    buckets.take(limit, BOB)
    await clock.advance(wait_s)
    buckets.take(limit, ADA)


async def test_a_minute_later_all_calls_may_be_made_again_and_no_more() -> None:
    clock = FakeClock()
    buckets = RateBuckets(Limits(per_minute=LIMITS), clock)
    for _ in range(2):
        for _ in range(LIMITS["deployments"]):
            buckets.take("deployments", ADA)
        assert refused(buckets, "deployments") == 12
        await clock.advance(60)


def test_limits_do_not_count_each_others_calls_and_none_is_none() -> None:
    buckets = RateBuckets(Limits(per_minute={**LIMITS, "node_reads": 0}), FakeClock())
    for _ in range(LIMITS["deployments"]):
        buckets.take("deployments", ADA)
    assert refused(buckets, "deployments") == 12
    buckets.take("registrations", ADA)
    for _ in range(1_000):
        buckets.take("node_reads", ADA)
