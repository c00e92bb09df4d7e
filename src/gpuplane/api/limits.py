"""How much one request or one tenant may ask for; every figure is a setting of the app."""

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from gpuplane.kit.clock import Clock
from gpuplane.kit.depths import MAX_JSON_DEPTH
from gpuplane.kit.errors import TooManyRequests

MAX_TENANTS = 10_000
"""Buckets kept at most; the one used longest ago is forgotten, which only ever makes it full."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may be."""

    body_bytes: int = 2 * 1024 * 1024
    """A JSON body; a manifest of a thousand jobs is a tenth of it."""
    json_depth: int = MAX_JSON_DEPTH
    """Objects and lists inside one another."""
    idempotency_key_chars: int = 255
    submits_per_s: float = 0.0
    """Submits of one tenant a second, in the long run; 0 means no limit."""
    submit_burst: int = 1_000
    """Submits of one tenant at once, after a pause."""
    streams: int = 200
    """Readers that follow the event stream at one time."""
    per_minute: Mapping[str, int] = field(default_factory=dict)
    """Calls of one user a minute by the name of the limit; 0 or absent means none."""


class SubmitBuckets:
    """One token bucket a tenant, in this process."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        """Make full buckets."""
        self._limits = limits
        self._clock = clock
        self._buckets: OrderedDict[UUID, tuple[float, float]] = OrderedDict()

    def take(self, tenant_id: UUID) -> None:
        """Count one submit of a tenant.

        Raises:
            TooManyRequests: If the tenant is over its limit; Retry-After says when it is not.
        """
        rate = self._limits.submits_per_s
        if rate <= 0:
            return
        now = self._clock.monotonic()
        left, since = self._buckets.get(tenant_id, (float(self._limits.submit_burst), now))
        left = min(float(self._limits.submit_burst), left + (now - since) * rate)
        if left < 1:
            raise TooManyRequests(
                f"Your tenant submits more than {rate:g} jobs a second.",
                code="submit_limit",
                fix="Send fewer, or ask the operator for a higher limit.",
                retry_after_s=max(1, math.ceil((1 - left) / rate)),
            )
        self._buckets[tenant_id] = (left - 1, now)
        self._buckets.move_to_end(tenant_id)
        if len(self._buckets) > MAX_TENANTS:
            self._buckets.popitem(last=False)


class RateBuckets:
    """One token bucket a user and limit, in this process."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        """Make full buckets."""
        self._limits = limits
        self._clock = clock
        self._buckets: OrderedDict[tuple[str, UUID], tuple[float, float]] = OrderedDict()

    def take(self, limit: str, user_id: UUID) -> None:
        """Count one call of a user.

        Raises:
            TooManyRequests: If the user is over the limit; Retry-After says when not any more.
        """
        most = self._limits.per_minute.get(limit, 0)
        if most <= 0:
            return
        now, key = self._clock.monotonic(), (limit, user_id)
        left, since = self._buckets.get(key, (float(most), now))
        left = min(float(most), left + (now - since) * most / 60)
        if left < 1:
            raise TooManyRequests(
                f"You have made {most} of these calls within a minute.",
                code="rate_limit",
                fix="Wait as long as Retry-After says.",
                retry_after_s=max(1, math.ceil((1 - left) * 60 / most)),
                extra={"limit": limit, "per_minute": most},
            )
        self._buckets[key] = (left - 1, now)
        self._buckets.move_to_end(key)
        if len(self._buckets) > MAX_TENANTS:
            self._buckets.popitem(last=False)

    def give_back(self, limit: str, user_id: UUID) -> None:
        """Take back the count of one call, which was refused before it did any work."""
        most, key = self._limits.per_minute.get(limit, 0), (limit, user_id)
        if key in self._buckets:
            left, since = self._buckets[key]
            self._buckets[key] = (min(float(most), left + 1), since)
