"""Accepts JWTs of OpenID Connect issuers: keys fetched and cached, claims mapped to grants."""

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any

import httpx2
import jwt

from gpuplane.core.ids import ProjectId, TenantId
from gpuplane.db.database import Database
from gpuplane.domains.identity import service
from gpuplane.kit.access import Grant, Principal, Role
from gpuplane.kit.clock import Clock
from gpuplane.kit.errors import Unauthenticated, Unavailable

log = logging.getLogger("gpuplane.api")

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")
KEYS_KEPT_S = 3_600.0
REFETCH_AFTER_S = 10.0
"""An unknown key id asks the issuer again at most this often, whatever strangers send."""
FETCH_TIMEOUT_S = 5.0
MAX_KEYS_BYTES = 512 * 1024
LEEWAY_S = 30
RETRY_AFTER_S = 10


@dataclass(frozen=True, slots=True)
class GroupGrant:
    """What members of an issuer's group may be: a role on the platform, a tenant or a project."""

    group: str
    role: Role
    tenant: str | None = None
    project: str | None = None


@dataclass(frozen=True, slots=True)
class OidcIssuer:
    """One trusted issuer; `tenant` and `project` name the home of users it brings."""

    issuer: str
    audience: str
    jwks_url: str | None = None
    """Where its keys lie; found through its discovery document when absent."""
    groups_claim: str = "groups"
    """The claim with the groups; dots descend, as in Keycloak's `realm_access.roles`."""
    name_claim: str = "preferred_username"
    group_grants: tuple[GroupGrant, ...] = ()
    creates_users: bool = True
    tenant: str = "default"
    project: str = "default"


@dataclass(slots=True)
class _Keys:
    by_id: dict[str, jwt.PyJWK] = field(default_factory=dict)
    fetched_at: float = float("-inf")
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class OidcLogins:
    """Checks JWTs against the configured issuers and finds the user behind them."""

    def __init__(
        self,
        issuers: tuple[OidcIssuer, ...],
        database: Database,
        clock: Clock,
        client: httpx2.AsyncClient,
    ) -> None:
        """Make one that fetches keys with the given client."""
        self._issuers = {one.issuer: one for one in issuers}
        self._keys = {one.issuer: _Keys() for one in issuers}
        self._database = database
        self._clock = clock
        self._client = client

    async def login(self, token: str) -> tuple[Principal, int]:
        """Return the principal of a JWT, and the instant in milliseconds at which it expires.

        Raises:
            Unauthenticated: If the token is not one of a trusted issuer for us, or its user is not.
            Unavailable: If the issuer's keys cannot be had.
        """
        issuer, claims = await self._verify(token)
        subject = str(claims["sub"])[:255]
        caller = await self._database.read(lambda s: service.find_login(s, issuer.issuer, subject))
        if caller is None:
            caller = await self._first_login(issuer, subject, claims)
        if caller is None:
            raise Unauthenticated(
                "Nobody here is known by this login.",
                code="user_unknown",
                fix="Ask an admin to make a user with your e-mail address.",
            )
        grants = await self._grants(issuer, claims)
        return service.principal_of(caller, grants), int(claims["exp"]) * 1000

    async def _verify(self, token: str) -> tuple[OidcIssuer, dict[str, Any]]:
        try:
            header = jwt.get_unverified_header(token)
            unverified = jwt.decode(token, options={"verify_signature": False})
            issuer = self._issuers[str(unverified["iss"])]
        except (jwt.PyJWTError, KeyError, ValueError) as error:
            raise _refused() from error
        key = await self._key(issuer, str(header.get("kid", "")))
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=list(ALGORITHMS),
                audience=issuer.audience,
                issuer=issuer.issuer,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iat", "sub", "iss", "aud"]},
            )
        except (jwt.PyJWTError, ValueError) as error:
            raise _refused() from error
        return issuer, claims

    async def _key(self, issuer: OidcIssuer, key_id: str) -> jwt.PyJWK:
        keys = self._keys[issuer.issuer]
        async with keys.lock:
            age = self._clock.monotonic() - keys.fetched_at
            if age > KEYS_KEPT_S or (key_id not in keys.by_id and age > REFETCH_AFTER_S):
                await self._fetch(issuer, keys)
        if key_id in keys.by_id:
            return keys.by_id[key_id]
        if not key_id and len(keys.by_id) == 1:
            return next(iter(keys.by_id.values()))
        raise _refused()

    async def _fetch(self, issuer: OidcIssuer, keys: _Keys) -> None:
        keys.fetched_at = self._clock.monotonic()
        try:
            url = issuer.jwks_url
            if url is None:
                found = await self._get(issuer.issuer.rstrip("/") + _DISCOVERY)
                url = str(found["jwks_uri"])
            listed = await self._get(url)
            keys.by_id = {str(one.key_id or ""): one for one in jwt.PyJWKSet.from_dict(listed).keys}
        except (httpx2.HTTPError, jwt.PyJWTError, ValueError, KeyError, TypeError) as error:
            log.warning("the keys of %s could not be had: %s", issuer.issuer, error)
            if not keys.by_id:
                raise Unavailable(
                    "The identity provider cannot be reached.",
                    code="issuer_unavailable",
                    fix="Try again, or use a token of this product.",
                    retry_after_s=RETRY_AFTER_S,
                ) from error

    async def _get(self, url: str) -> dict[str, Any]:
        answer = await self._client.get(url, timeout=FETCH_TIMEOUT_S)
        answer.raise_for_status()
        if len(answer.content) > MAX_KEYS_BYTES:
            raise ValueError("the answer is too long")
        value = answer.json()
        if not isinstance(value, dict):
            raise ValueError("the answer is no object")
        return value

    async def _first_login(
        self, issuer: OidcIssuer, subject: str, claims: dict[str, Any]
    ) -> service.Caller | None:
        linked = await self._database.read(lambda s: service.has_login(s, issuer.issuer, subject))
        if linked:  # and not found above: the user is disabled
            return None
        email = claims.get("email") if claims.get("email_verified") is True else None
        name = _user_name(str(claims.get(issuer.name_claim) or email or subject))
        now = self._clock.now_ms()

        def link(session: Any) -> service.Caller | None:
            home = None
            tenant = service.find_tenant_by_name(session, issuer.tenant)
            if issuer.creates_users and tenant is not None:
                project = service.find_project_in(session, tenant.id, issuer.project)
                home = None if project is None else (tenant.id, project.id)
            address = None if email is None else str(email).lower()[:254]
            return service.ensure_login(session, issuer.issuer, subject, name, address, home, now)

        return await self._database.write("identity.ensure_login", link)

    async def _grants(self, issuer: OidcIssuer, claims: dict[str, Any]) -> list[Grant]:
        groups = _groups(claims, issuer.groups_claim)
        wanted = [one for one in issuer.group_grants if one.group in groups]
        if not wanted:
            return []

        def resolve(session: Any) -> list[Grant]:
            grants = []
            for one in wanted:
                tenant_id: TenantId | None = None
                project_id: ProjectId | None = None
                if one.tenant is not None:
                    tenant = service.find_tenant_by_name(session, one.tenant)
                    if tenant is None:
                        continue
                    tenant_id = tenant.id
                if one.project is not None and tenant_id is not None:
                    project = service.find_project_in(session, tenant_id, one.project)
                    if project is None:
                        continue
                    project_id = project.id
                grants.append(Grant(one.role, tenant_id, project_id))
            return grants

        return await self._database.read(resolve)


_DISCOVERY = "/.well-known/openid-configuration"


def _groups(claims: dict[str, Any], path: str) -> set[str]:
    value: Any = claims
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return {str(one) for one in value} if isinstance(value, list) else set()


def _user_name(text: str) -> str:
    kept = "".join(c if c.isascii() and c.isalnum() else "-" for c in text.lower())
    return kept.strip("-")[:63].strip("-") or "user"


def _refused() -> Unauthenticated:
    return Unauthenticated(
        "The login token is not valid here.",
        code="token_invalid",
        fix="Log in again; issuer and audience must be the configured ones.",
    )
