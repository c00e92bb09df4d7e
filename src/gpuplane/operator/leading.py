"""Who of several replicas leads: a Lease that the leader renews and others take when it stops.

Owns the Lease. Every write names the resourceVersion that was read, so that two cannot take it at
once. What others wrote is judged by when it was seen to change on this machine's monotonic clock,
so that clocks which differ do no harm.

Source: the rules of client-go's leaderelection (leaseDuration, renewDeadline, retryPeriod).
"""

import logging
from typing import Any

from gpuplane.kit.clock import Clock, instant_to_text
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import AlreadyThere, Conflict, KubeError
from gpuplane.kube.kinds import LEASE

log = logging.getLogger(__name__)

LEASE_S = 15
RENEW_WITHIN_S = 10.0
"""A leader that has not renewed for so long stops, well before others may take over."""
RETRY_S = 2.0


class Leadership:
    """One replica's part in the election."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        name: str,
        identity: str,
        clock: Clock,
        *,
        lease_s: int = LEASE_S,
    ) -> None:
        """Prepare to take part.

        Args:
            name: Of the Lease.
            identity: Of this replica, unlike every other's.
            lease_s: After so long without renewal others take over; two thirds of it are ours.
        """
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._clock = clock
        self._lease_s = lease_s
        self._seen: tuple[Any, ...] | None = None
        self._seen_at = 0.0
        self._renewed_at: float | None = None

    @property
    def is_held(self) -> bool:
        """Return whether this replica leads and may still act on it."""
        limit_s = self._lease_s * RENEW_WITHIN_S / LEASE_S
        return self._renewed_at is not None and self._clock.monotonic() - self._renewed_at < limit_s

    @property
    def retry_s(self) -> float:
        """Return how long to wait between two tries."""
        return self._lease_s * RETRY_S / LEASE_S

    async def try_once(self) -> bool:
        """Take or renew the Lease if it may be taken; returns whether this replica leads."""
        started = self._clock.monotonic()
        try:
            if await self._take():
                self._renewed_at = started
            else:
                self._renewed_at = None
        except (Conflict, AlreadyThere):
            self._renewed_at = None  # another was quicker; the next look says who
        except KubeError as error:
            log.warning("the lease cannot be renewed: %s", error)
        return self.is_held

    async def step_down(self) -> None:
        """Give the Lease back, so that another replica need not wait for its end."""
        if self._renewed_at is None:
            return
        self._renewed_at = None
        try:
            lease = await self._client.find(LEASE, self._name, self._namespace)
            if lease is not None and lease["spec"].get("holderIdentity") == self._identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self._client.replace(lease)
        except KubeError as error:
            log.info("the lease was not given back: %s", error)

    async def _take(self) -> bool:
        lease = await self._client.find(LEASE, self._name, self._namespace)
        if lease is None:
            await self._client.create(
                {
                    "apiVersion": LEASE.api_version,
                    "kind": LEASE.kind,
                    "metadata": {"name": self._name, "namespace": self._namespace},
                    "spec": self._spec({}, is_new=True),
                }
            )
            return True
        spec = lease.get("spec") or {}
        is_mine = spec.get("holderIdentity") == self._identity
        if not is_mine and not self._has_ended(spec):
            return False
        lease["spec"] = self._spec(spec, is_new=not is_mine)
        await self._client.replace(lease)
        return True

    def _has_ended(self, spec: dict[str, Any]) -> bool:
        """Return whether another's Lease was not renewed for as long as it holds."""
        if not spec.get("holderIdentity"):
            return True
        mark = (spec["holderIdentity"], spec.get("renewTime"), spec.get("leaseTransitions"))
        now = self._clock.monotonic()
        if mark != self._seen:
            self._seen, self._seen_at = mark, now
            return False
        return now - self._seen_at > float(spec.get("leaseDurationSeconds") or self._lease_s)

    def _spec(self, before: dict[str, Any], *, is_new: bool) -> dict[str, Any]:
        now = instant_to_text(self._clock.now_ms()).replace("Z", "000Z")
        changes = int(before.get("leaseTransitions") or 0)
        return {
            **before,
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._lease_s,
            "renewTime": now,
            "acquireTime": now if is_new else before.get("acquireTime", now),
            "leaseTransitions": changes + 1 if is_new and before else changes,
        }
