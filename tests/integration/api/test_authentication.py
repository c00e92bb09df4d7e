"""Who is let in: product tokens, and JWTs of the issuers an operator trusts."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from gpuplane.api.authentication import Authenticator
from gpuplane.api.oidc import GroupGrant, OidcIssuer, OidcLogins
from gpuplane.core.ids import TokenId
from gpuplane.db.database import Database
from gpuplane.domains.identity import service as identity
from gpuplane.kit.access import Permission, Role
from gpuplane.kit.clock import instant_to_text
from gpuplane.kit.errors import Unauthenticated, Unavailable
from tests.http_app import Server

ISSUER = "https://login.example.com/realms/gpu"


@pytest.mark.parametrize(
    "header",
    [None, "Bearer", "Bearer ", "Basic YTpi", "Bearer gp_" + "x" * 40, "Bearer a.b.c", "Bearer é"],
)
async def test_who_is_not_known_gets_401_with_a_way_out(server: Server, header: str | None) -> None:
    headers = [] if header is None else [(b"Authorization", header.encode())]
    answer = await server.client(None).get("/api/v1/whoami", headers=headers)
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert answer.json()["fix"]


async def test_a_revoked_token_is_shut_out_at_once(any_server: Server) -> None:
    made = (await any_server.http.post("/api/v1/tokens", json={"name": "t"})).json()
    client = any_server.client(made["token"])
    assert (await client.get("/api/v1/whoami")).status_code == 200
    await any_server.http.delete(f"/api/v1/tokens/{made['id']}")
    assert (await client.get("/api/v1/whoami")).status_code == 401


async def test_a_token_revoked_by_another_process_is_shut_out_within_five_seconds(
    any_server: Server,
) -> None:
    made = (await any_server.http.post("/api/v1/tokens", json={"name": "t"})).json()
    client = any_server.client(made["token"])
    assert (await client.get("/api/v1/whoami")).status_code == 200
    other = Database(any_server.database.url.render_as_string(hide_password=False))
    try:
        token_id = TokenId(UUID(made["id"]))
        await other.write(
            "tests.revoke",
            lambda s: identity.revoke_token(s, any_server.admin, token_id, 1),
        )
    finally:
        other.close()
    any_server.clock.advance(5)
    assert (await client.get("/api/v1/whoami")).status_code == 401


async def test_an_expired_token_is_shut_out_to_the_second(server: Server) -> None:
    expires = instant_to_text(server.clock.now_ms() + 60_000)
    made = (
        await server.http.post("/api/v1/tokens", json={"name": "t", "expires_at": expires})
    ).json()
    client = server.client(made["token"])
    server.clock.advance(58)
    assert (await client.get("/api/v1/whoami")).status_code == 200
    server.clock.advance(3)
    assert (await client.get("/api/v1/whoami")).status_code == 401


async def test_a_disabled_user_is_nobody(server: Server) -> None:
    user_id, token = await server.make_user(
        "ada", Role.ADMIN, server.admin.tenant_id, server.admin.project_id, on="tenant"
    )
    client = server.client(token)
    assert (await client.get("/api/v1/whoami")).status_code == 200
    await server.http.patch(f"/api/v1/users/{user_id}", json={"disabled": True})
    assert (await client.get("/api/v1/whoami")).status_code == 401


async def test_a_scoped_token_carries_its_scopes_alone_and_makes_no_wider_one(
    server: Server,
) -> None:
    made = await server.http.post(
        "/api/v1/tokens", json={"name": "t", "scopes": ["token:manage", "member:read"]}
    )
    client = server.client(made.json()["token"])
    assert (await client.get("/api/v1/tenants")).status_code == 200
    assert (await client.post("/api/v1/tenants", json={"name": "acme"})).status_code == 403
    wider = await client.post("/api/v1/tokens", json={"name": "w", "scopes": ["job:write"]})
    assert (wider.status_code, wider.json()["code"]) == (403, "wider_than_own")
    same = await client.post("/api/v1/tokens", json={"name": "s"})
    assert same.json()["scopes"] == ["member:read", "token:manage"]


async def test_the_use_of_a_token_is_noted_coarsely(server: Server) -> None:
    made = (await server.http.post("/api/v1/tokens", json={"name": "t"})).json()
    client = server.client(made["token"])

    async def noted() -> str | None:
        listed = (await server.http.get("/api/v1/tokens")).json()["items"]
        (found,) = [one["last_used_at"] for one in listed if one["id"] == made["id"]]
        return None if found is None else str(found)

    assert await noted() is None
    await client.get("/api/v1/whoami")
    first = await noted()
    server.clock.advance(60)
    await client.get("/api/v1/whoami")
    assert await noted() == first
    server.clock.advance(3_600)
    await client.get("/api/v1/whoami")
    assert await noted() != first


# -- OpenID Connect ---------------------------------------------------------------------------


@dataclass
class Issuer:
    """An identity provider with real keys, asked over an in-memory transport."""

    keys: dict[str, rsa.RSAPrivateKey] = field(default_factory=dict)
    fetches: int = 0
    is_away: bool = False

    def add_key(self, key_id: str) -> None:
        self.keys[key_id] = rsa.generate_private_key(65_537, 2_048)

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        if self.is_away:
            raise httpx2.ConnectError("the issuer is away", request=request)
        if request.url.path.endswith("/openid-configuration"):
            return httpx2.Response(200, json={"jwks_uri": f"{ISSUER}/keys"})
        self.fetches += 1
        listed = []
        for key_id, key in self.keys.items():
            public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key()))
            listed.append({**public, "kid": key_id, "use": "sig", "alg": "RS256"})
        return httpx2.Response(200, json={"keys": listed})

    def token(self, key_id: str = "k1", **claims: Any) -> str:
        now = int(time.time())
        content = {
            "iss": ISSUER,
            "aud": "gpuplane",
            "sub": "subject-1",
            "iat": now,
            "exp": now + 300,
            "preferred_username": "Ada Lovelace",
            "email": "ada@example.com",
            "email_verified": True,
            **claims,
        }
        content = {name: value for name, value in content.items() if value is not None}
        return jwt.encode(content, self.keys[key_id], "RS256", headers={"kid": key_id})


@dataclass
class Login:
    """An authenticator that trusts one issuer."""

    server: Server
    issuer: Issuer
    authenticator: Authenticator

    async def __call__(self, token: str) -> Any:
        return await self.authenticator.authenticate(f"Bearer {token}")


@pytest.fixture
async def login(server: Server) -> AsyncIterator[Login]:
    issuer = Issuer()
    issuer.add_key("k1")
    trusted = OidcIssuer(
        issuer=ISSUER,
        audience="gpuplane",
        groups_claim="realm_access.roles",
        group_grants=(
            GroupGrant("gpu-admins", Role.ADMIN),
            GroupGrant("gpu-users", Role.MEMBER, "default", "default"),
            GroupGrant("ghosts", Role.ADMIN, "no-such-tenant"),
        ),
    )
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(issuer.answer)) as client:
        oidc = OidcLogins((trusted,), server.database, server.clock, client)
        yield Login(server, issuer, Authenticator(server.database, server.clock, oidc))


async def test_a_first_login_makes_a_user_and_the_second_finds_it(login: Login) -> None:
    first = await login(login.issuer.token(jti="1"))
    second = await login(login.issuer.token(jti="2"))
    assert first.name == "ada-lovelace"
    assert second.user_id == first.user_id
    assert first.grants == ()


async def test_groups_of_the_issuer_become_roles(login: Login) -> None:
    roles = {"roles": ["gpu-users", "ghosts", "unknown"]}
    principal = await login(login.issuer.token(realm_access=roles))
    assert [grant.role for grant in principal.grants] == [Role.MEMBER]
    project = login.server.admin.project_id
    assert principal.may(Permission.JOB_WRITE, login.server.admin.tenant_id, project)
    assert not principal.is_platform


async def test_a_verified_address_links_to_the_user_who_has_it(login: Login) -> None:
    made = await login.server.http.post(
        "/api/v1/users", json={"name": "ada", "email": "Ada@example.com"}
    )
    principal = await login(login.issuer.token())
    assert str(principal.user_id) == made.json()["id"]


async def test_an_address_nobody_verified_links_to_nobody(login: Login) -> None:
    made = await login.server.http.post(
        "/api/v1/users", json={"name": "ada", "email": "ada@example.com"}
    )
    principal = await login(login.issuer.token(email_verified=False))
    assert str(principal.user_id) != made.json()["id"]


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": "another-product"},
        {"iss": "https://evil.example.com"},
        {"exp": int(time.time()) - 3_600},
        {"exp": None},
        {"sub": None},
    ],
    ids=lambda claims: next(iter(claims)),
)
async def test_a_token_not_meant_for_us_is_refused(login: Login, claims: dict[str, Any]) -> None:
    with pytest.raises(Unauthenticated):
        await login(login.issuer.token(**claims))


async def test_a_token_signed_by_another_key_or_by_none_is_refused(login: Login) -> None:
    stranger = Issuer()
    stranger.add_key("k1")
    with pytest.raises(Unauthenticated):
        await login(stranger.token())
    claims = jwt.decode(login.issuer.token(), options={"verify_signature": False})
    unsigned = jwt.encode(claims, "", "none", headers={"kid": "k1"})
    with pytest.raises(Unauthenticated):
        await login(unsigned)
    symmetric = jwt.encode(claims, "x" * 64, "HS256", headers={"kid": "k1"})
    with pytest.raises(Unauthenticated):
        await login(symmetric)


async def test_a_new_key_is_fetched_and_strangers_cannot_make_us_ask_for_ever(
    login: Login,
) -> None:
    await login(login.issuer.token())
    assert login.issuer.fetches == 1
    stranger = Issuer()
    stranger.add_key("k9")
    for _ in range(5):
        with pytest.raises(Unauthenticated):
            await login(stranger.token("k9"))
    assert login.issuer.fetches == 1
    login.issuer.add_key("k2")
    login.server.clock.advance(11)
    await login(login.issuer.token("k2"))
    assert login.issuer.fetches == 2


async def test_an_issuer_that_is_away_is_said_to_be_and_known_keys_go_on(login: Login) -> None:
    login.issuer.is_away = True
    with pytest.raises(Unavailable, match="identity provider"):
        await login(login.issuer.token())
    login.issuer.is_away = False
    login.server.clock.advance(11)
    await login(login.issuer.token(jti="1"))
    login.issuer.is_away = True
    await login(login.issuer.token(jti="2"))


async def test_a_user_disabled_here_is_shut_out_whatever_the_issuer_says(login: Login) -> None:
    principal = await login(login.issuer.token(jti="1"))
    await login.server.http.patch(f"/api/v1/users/{principal.user_id}", json={"disabled": True})
    with pytest.raises(Unauthenticated):
        await login(login.issuer.token(jti="2"))
