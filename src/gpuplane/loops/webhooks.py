"""Carries events to webhooks: signed, retried with back-off, never into the operator's network.

Delivery is at least once and in no promised order; `Gpuplane-Delivery` lets receivers drop
repetitions.
"""

import asyncio
import hashlib
import hmac
import json
import socket
from collections.abc import Callable

import httpx2

from gpuplane.db.database import Database
from gpuplane.db.leases import LeaseKeeper
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.events import service
from gpuplane.kit.clock import Clock
from gpuplane.kit.errors import ProductError
from gpuplane.kit.sealing import SealingKeys

BATCH = 64
"""Deliveries claimed at once."""
AT_ONCE = 16
"""Deliveries on the wire at one time."""
ERROR_CHARS = 300


class Refused(Exception):
    """The delivery may not be sent to where its webhook points."""


class WebhookLoop:
    """One leased sender."""

    name = service.WEBHOOKS
    period_s = 5.0

    def __init__(
        self,
        database: Database,
        clock: Clock,
        leases: LeaseKeeper,
        sealing: SealingKeys,
        policy: service.WebhookPolicy,
        client: httpx2.AsyncClient,
        chance: Callable[[], float],
    ) -> None:
        """Make the loop.

        Args:
            database: Where webhooks and deliveries lie.
            clock: Tells the time.
            leases: Let one process send; were it two, no delivery would be planned twice.
            sealing: Opens the webhooks' secrets.
            policy: What webhooks may do.
            client: Sends; it must not follow redirects and must ignore proxies of the environment.
            chance: A number in [0, 1) for the jitter of retries.
        """
        self._database = database
        self._clock = clock
        self._leases = leases
        self._sealing = sealing
        self._policy = policy
        self._client = client
        self._chance = chance

    async def run_once(self) -> bool:
        """Plan and send one batch; True when more work is known."""
        now = self._clock.now_ms()
        if not await self._database.read(lambda s: service.has_webhook_work(s, now)):
            return False
        if await self._leases.hold(self.name) is None:
            return False
        more, due = await self._database.write("events.plan_deliveries", self._plan)
        if not due:
            return more
        gate = asyncio.Semaphore(AT_ONCE)
        results = await asyncio.gather(*(self._deliver(one, gate) for one in due))
        await self._database.write(
            "events.store_deliveries",
            lambda s: service.store_results(s, results, self._policy, self._clock.now_ms()),
        )
        return more or len(due) == BATCH

    def _plan(self, session: WriteSession) -> tuple[bool, tuple[service.DueDelivery, ...]]:
        now = self._clock.now_ms()
        more = service.plan_deliveries(session, now)
        return more, service.claim_due(session, now, BATCH)

    async def _deliver(
        self, delivery: service.DueDelivery, gate: asyncio.Semaphore
    ) -> service.DeliveryResult:
        status: int | None = None
        async with gate:
            try:
                async with asyncio.timeout(self._policy.timeout_s):
                    status = await self._send(delivery)
                error = "" if 200 <= status < 300 else f"The receiver answered {status}."
            except TimeoutError:
                error = f"No answer within {self._policy.timeout_s:g} s."
            except (Refused, ProductError) as refusal:
                error = str(refusal)
            except (httpx2.HTTPError, OSError, UnicodeError) as failure:
                error = f"{type(failure).__name__}: {failure}"
        tries = delivery.tries + 1
        next_at = None
        if error and tries < self._policy.tries:
            next_at = service.compute_next_try(self._clock.now_ms(), tries, self._chance())
        return service.DeliveryResult(
            delivery.id, delivery.webhook_id, status, error[:ERROR_CHARS], next_at
        )

    async def _send(self, delivery: service.DueDelivery) -> int:
        """Send one delivery to an address that was checked, whatever the name says later."""
        target = service.parse_target(delivery.url)
        if target is None:
            raise Refused("The address cannot be read.")
        address = await self._address(target)
        secret = self._sealing.open(
            delivery.sealed_secret, service.secret_context(delivery.webhook_id)
        )
        body = json.dumps(service.payload_of(delivery.event), separators=(",", ":")).encode()
        at_s = self._clock.now_ms() // 1000
        host = f"[{address}]" if ":" in address else address
        named = f"[{target.host}]" if ":" in target.host else target.host
        default = target.port == (443 if target.scheme == "https" else 80)
        request = self._client.build_request(
            "POST",
            f"{target.scheme}://{host}:{target.port}{target.path}",
            content=body,
            headers={
                "Host": named if default else f"{named}:{target.port}",
                "Content-Type": "application/json",
                "User-Agent": "gpuplane-webhooks",
                "Gpuplane-Event": delivery.event.kind,
                "Gpuplane-Delivery": str(delivery.id),
                "Gpuplane-Signature": f"t={at_s},v1={sign(secret, at_s, body)}",
            },
            extensions={"sni_hostname": target.host},
        )
        answer = await self._client.send(request, stream=True)  # the body is nobody's business
        await answer.aclose()
        return int(answer.status_code)

    async def _address(self, target: service.Target) -> str:
        """Return the first address of a host, if every one of its addresses may be called."""
        reason = service.target_refusal(target, self._policy.allowed_hosts)
        if reason is not None:
            raise Refused(f"Not sent: {reason}.")
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            raise Refused(f"{target.host} has no address.") from error
        addresses = [str(one[4][0]) for one in found]
        for address in addresses:
            reason = service.address_refusal(target.host, address, self._policy.allowed_hosts)
            if reason is not None:
                raise Refused(f"Not sent: {reason}.")
        if not addresses:
            raise Refused(f"{target.host} has no address.")
        return addresses[0]


def sign(secret: bytes, at_s: int, body: bytes) -> str:
    """Return the signature of a delivery: HMAC-SHA256 over the time, a dot and the body."""
    return hmac.new(secret, f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()
