"""Carries events to webhooks: signed, retried with back-off, never into the operator's network.

Delivery is at least once and in no promised order; `Gpuplane-Delivery` lets receivers drop
repetitions.
"""

import asyncio
import json
from collections.abc import Callable
from functools import partial

import httpx2

from gpuplane.db.database import Database
from gpuplane.db.leases import LeaseKeeper
from gpuplane.db.questions import LAST_INSTANT, Question
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.events import service
from gpuplane.kit.clock import Clock
from gpuplane.kit.errors import ProductError
from gpuplane.kit.outbound import NoAddress, TargetRefused, send
from gpuplane.kit.sealing import SealingKeys
from gpuplane.kit.signatures import sign

BATCH = 64
"""Deliveries claimed at once."""
AT_ONCE = 16
"""Deliveries on the wire at one time."""
ERROR_CHARS = 300


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
        self._ahead = Question(database, partial(service.has_webhook_work, now=LAST_INSTANT))

    async def run_once(self) -> bool:
        """Plan and send one batch; True when more work is known."""
        now = self._clock.now_ms()
        if not await self._ahead.ask():
            return False  # neither now nor ever, as things stand
        if not await self._database.read(partial(service.has_webhook_work, now=now)):
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
            except (TargetRefused, NoAddress, ProductError) as refusal:
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
        """Send one delivery; return the status of the answer."""
        secret = self._sealing.open(
            delivery.sealed_secret, service.secret_context(delivery.webhook_id)
        )
        body = json.dumps(service.payload_of(delivery.event), separators=(",", ":")).encode()
        at_s = self._clock.now_ms() // 1000
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "gpuplane-webhooks",
            "Gpuplane-Event": delivery.event.kind,
            "Gpuplane-Delivery": str(delivery.id),
            "Gpuplane-Signature": f"t={at_s},v1={sign(secret, at_s, body)}",
        }
        allowed = self._policy.allowed_hosts
        answer = await send(self._client, "POST", delivery.url, headers, body, allowed)
        await answer.aclose()  # its body is nobody's business
        return int(answer.status_code)
