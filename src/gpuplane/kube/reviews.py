"""What our credentials may do in a cluster, asked from the cluster itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpuplane.kube.kinds import Kind
from gpuplane.kube.sessions import Session
from gpuplane.kube.watching import decode_object

_PATH = "/apis/authorization.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class Rule:
    """Verbs that are allowed on resources of groups; `*` stands for all."""

    verbs: tuple[str, ...]
    groups: tuple[str, ...]
    resources: tuple[str, ...]
    names: tuple[str, ...] = ()

    def allows(self, verb: str, group: str, resource: str) -> bool:
        """Return whether it allows a verb on every object of a resource."""
        return (
            not self.names
            and _holds(self.verbs, verb)
            and _holds(self.groups, group)
            and _holds(self.resources, resource)
        )


@dataclass(frozen=True, slots=True)
class Rules:
    """What is allowed in a namespace.

    Attributes:
        rules: Of the authorizers that can tell.
        incomplete: Whether others may allow more.
    """

    rules: tuple[Rule, ...]
    incomplete: bool

    def allow(self, verb: str, kind: Kind, subresource: str | None = None) -> bool:
        """Return whether a verb on a kind is allowed by these."""
        resource = kind.plural if subresource is None else f"{kind.plural}/{subresource}"
        return any(rule.allows(verb, kind.group, resource) for rule in self.rules)


async def may(
    session: Session,
    verb: str,
    kind: Kind,
    namespace: str | None,
    name: str | None,
    subresource: str | None,
) -> bool:
    """Return whether the cluster would let us."""
    wanted = {
        "verb": verb,
        "group": kind.group,
        "version": kind.version,
        "resource": kind.plural,
        "subresource": subresource,
        "namespace": namespace,
        "name": name,
    }
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {k: v for k, v in wanted.items() if v}},
    }
    answer = await _post(session, "selfsubjectaccessreviews", body)
    return bool((answer.get("status") or {}).get("allowed"))


async def load_rules(session: Session, namespace: str) -> Rules:
    """Return the rules that hold for us in a namespace."""
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    status = (await _post(session, "selfsubjectrulesreviews", body)).get("status") or {}
    rules = [
        Rule(
            tuple(one.get("verbs") or ()),
            tuple(one.get("apiGroups") or ()),
            tuple(one.get("resources") or ()),
            tuple(one.get("resourceNames") or ()),
        )
        for one in status.get("resourceRules") or ()
    ]
    return Rules(tuple(rules), bool(status.get("incomplete")))


async def _post(session: Session, plural: str, body: dict[str, Any]) -> dict[str, Any]:
    return decode_object(await session.send("POST", f"{_PATH}/{plural}", body=body), dict[str, Any])


def _holds(allowed: Sequence[str], wanted: str) -> bool:
    if wanted in allowed or "*" in allowed:
        return True
    resource, _, subresource = wanted.partition("/")
    return bool(subresource) and f"*/{subresource}" in allowed and bool(resource)
