"""Finds out who is calling: product tokens by their hash, and JWTs of configured issuers.

Callers are cached for a few seconds, so a revocation made by another process takes effect after
`CACHE_S` at most; one made by this process takes effect at once.
"""

import hashlib
import logging
import re
from collections import OrderedDict
from dataclasses import dataclass

from gpuplane.api.oidc import OidcLogins
from gpuplane.db.database import Database
from gpuplane.domains.identity import service
from gpuplane.kit.access import Principal
from gpuplane.kit.clock import Clock
from gpuplane.kit.errors import ProductError, Unauthenticated

log = logging.getLogger("gpuplane.api")

CACHE_S = 5.0
CACHE_SIZE = 10_000
TOUCH_EVERY_MS = 3_600_000
"""The last use of a token is noted once an hour: often enough to see that one is not used."""
MAX_TOKEN_CHARS = 8_192

_TOKEN = re.compile(r"gp_[A-Za-z0-9_-]{20,100}")


@dataclass(frozen=True, slots=True)
class _Cached:
    principal: Principal
    until: float
    valid_until: int | None
    """The instant in milliseconds at which the token itself expires."""


class Authenticator:
    """Turns an Authorization header into a principal."""

    def __init__(self, database: Database, clock: Clock, oidc: OidcLogins | None = None) -> None:
        """Make one for an app; it forgets cached callers when rights change."""
        self._database = database
        self._clock = clock
        self._oidc = oidc
        self._cache: OrderedDict[str, _Cached] = OrderedDict()
        self._generation = 0
        database.on_commit(self._forget)

    async def authenticate(self, authorization: str | None) -> Principal:
        """Return the principal behind a header.

        Raises:
            Unauthenticated: If nobody is known behind it.
        """
        if not authorization:
            raise Unauthenticated(
                "This call needs a token.",
                code="token_missing",
                fix="Send the header Authorization: Bearer <token>.",
            )
        scheme, _, credential = authorization.partition(" ")
        credential = credential.strip()
        if scheme.lower() != "bearer" or not 0 < len(credential) <= MAX_TOKEN_CHARS:
            raise _unknown()
        digest = hashlib.sha256(credential.encode()).hexdigest()
        cached = self._cache.get(digest)
        if cached is not None and self._holds(cached):
            return cached.principal
        generation = self._generation
        if _TOKEN.fullmatch(credential):
            principal, valid_until = await self._by_token(digest)
        elif self._oidc is not None and credential.count(".") == 2:
            principal, valid_until = await self._oidc.login(credential)
        else:
            raise _unknown()
        if generation == self._generation:  # else rights changed while we were reading them
            self._remember(digest, principal, valid_until)
        return principal

    def _holds(self, cached: _Cached) -> bool:
        if self._clock.monotonic() >= cached.until:
            return False
        return cached.valid_until is None or self._clock.now_ms() < cached.valid_until

    async def _by_token(self, digest: str) -> tuple[Principal, int | None]:
        now = self._clock.now_ms()
        caller = await self._database.read(lambda s: service.find_caller(s, digest, now))
        if caller is None or caller.token is None:
            raise _unknown()
        token = caller.token
        if token.last_used_at is None or now - token.last_used_at > TOUCH_EVERY_MS:
            try:
                await self._database.write(
                    "identity.touch_token", lambda s: service.touch_token(s, token.id, now)
                )
            except ProductError as error:  # a full disk must not shut readers out
                log.warning("the last use of a token could not be noted: %s", error.detail)
        return service.principal_of(caller), token.expires_at

    def _remember(self, digest: str, principal: Principal, valid_until: int | None) -> None:
        until = self._clock.monotonic() + CACHE_S
        self._cache[digest] = _Cached(principal, until, valid_until)
        self._cache.move_to_end(digest)
        while len(self._cache) > CACHE_SIZE:
            self._cache.popitem(last=False)

    def _forget(self, woken: set[str]) -> None:
        if service.CHANGED in woken:
            self._generation += 1
            self._cache.clear()


def hash_of(token: str) -> str:
    """Return what is stored of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def _unknown() -> Unauthenticated:
    return Unauthenticated(
        "The token is not known, has expired or was revoked.",
        code="token_invalid",
        fix="Use a valid token; `gpuplane tokens create` makes one.",
    )
