"""The life of tokens: made, listed, shut out."""

from dataclasses import replace

from gpuplane.core.ids import TokenId, UserId
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.identity import repository, rules
from gpuplane.domains.identity.errors import (
    TokenNotFound,
    WiderThanOwn,
)
from gpuplane.domains.identity.rules import (
    Token,
)
from gpuplane.domains.identity.service.people import get_user, require_rule_over
from gpuplane.domains.identity.service.telling import CHANGED, announce
from gpuplane.kit.access import Principal
from gpuplane.kit.pagination import Page, PageRequest


def create_token(
    session: WriteSession, principal: Principal, token: Token, token_hash: str, now: int
) -> Token:
    """Store a token for oneself, or for a user whose every role the caller administers."""
    user = get_user(session, principal, token.user_id)
    if user.id != principal.user_id:
        require_rule_over(session, principal, user)
    missing = rules.missing_scopes(token.scopes, principal.scopes)
    if missing:
        raise WiderThanOwn(
            f"Your own token does not hold {', '.join(missing)}.",
            field="scopes",
            fix="Ask for fewer scopes, or use a wider token.",
        )
    token = replace(token, scopes=rules.narrowed_scopes(token.scopes, principal.scopes))
    repository.store_token(session, token, token_hash)
    data: dict[str, object] = {"token_id": str(token.id), "name": token.name}
    announce(
        session, "token.created", "user", user.id, principal.name, now, user.tenant_id, data=data
    )
    return token


def list_tokens(
    session: ReadSession, principal: Principal, user_id: UserId, page: PageRequest
) -> Page[Token]:
    """Return one page of a user's tokens, oldest first."""
    user = get_user(session, principal, user_id)
    if user.id != principal.user_id:
        require_rule_over(session, principal, user)
    return repository.list_tokens(session, user_id, page)


def revoke_token(session: WriteSession, principal: Principal, token_id: TokenId, now: int) -> Token:
    """Shut a token out; it stays listed. Doing it again changes nothing."""
    token = repository.find_token(session, token_id)
    if token is None:
        raise TokenNotFound("There is no token of that id.", fix="List the tokens.")
    if token.user_id != principal.user_id:
        user = repository.find_user(session, token.user_id)
        if user is None or not principal.sees_tenant(user.tenant_id):
            raise TokenNotFound("There is no token of that id.", fix="List the tokens.")
        require_rule_over(session, principal, user)
    if token.revoked_at is None:
        repository.set_token(session, token.id, {"revoked_at": now})
        token = replace(token, revoked_at=now)
        session.wake(CHANGED)
        data: dict[str, object] = {"token_id": str(token.id), "name": token.name}
        announce(session, "token.revoked", "user", token.user_id, principal.name, now, data=data)
    return token
