"""The account by which a control plane works in a cluster, made by whoever administers that.

Owns its objects: what registration asks for (`kube.preflight`) and no more, and a token that lasts.
A token of the TokenRequest API would not: whatever is asked for, EKS gives one for 24 hours and GKE
for 48 (aws/containers-roadmap issue 1836, DataDog/stratus-red-team issue 163). Never keeps the
administrator's credentials.
"""

import asyncio
import base64
import contextlib
from dataclasses import replace

from gpuplane.kube import kinds
from gpuplane.kube.accounts import Object, account_objects, role_binding
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.connections import Connection
from gpuplane.kube.errors import NotThere
from gpuplane.kube.kinds import CLUSTER_ROLE_BINDING, SECRET
from gpuplane.kube.kueue.multikueue import NAMESPACE as KUEUE_NAMESPACE
from gpuplane.kube.kueue.multikueue import worker_objects
from gpuplane.kube.preflight import list_access_rules
from gpuplane.provisioning.errors import ProvisioningError, Reason

NAMESPACE = "gpuplane-system"
ACCOUNT = "gpuplane-access"
TOKEN_SECRET = "gpuplane-access-token"
ADDONS_BINDING = "gpuplane-access-addons"
TOKEN_S = 30.0
"""Controllers of a cluster fill the Secret of a token within a second."""
LOOK_S = 0.2
_LABELS = {"app.kubernetes.io/managed-by": "gpuplane"}


def access_objects() -> tuple[Object, ...]:
    """Return the account, its rights and its token, in the order in which they are made."""
    rules = [(rule.group, rule.resource, rule.verbs) for rule in list_access_rules()]
    return (
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        *account_objects(NAMESPACE, ACCOUNT, TOKEN_SECRET, rules, _LABELS),
    )


def addons_binding() -> Object:
    """Return what lets the account install add-ons: their charts make objects of every kind."""
    return role_binding(ADDONS_BINDING, "cluster-admin", NAMESPACE, ACCOUNT, _LABELS)


async def ensure_access(admin: Connection) -> Connection:
    """Make the account in a cluster and return the way in by it; again, returns the same.

    It may bring no add-ons in; where it could before, that is taken back.

    Raises:
        KubeError: What the cluster answers instead.
        ProvisioningError: If the cluster makes no token.
    """
    async with KubeClient(admin) as client:
        token = await _make(client, access_objects())
        await client.delete(CLUSTER_ROLE_BINDING, ADDONS_BINDING)
    return _by_token(admin, token)


async def ensure_access_for_addons(admin: Connection) -> Connection:
    """Make the account with the rights of an administrator, which charts of add-ons need.

    Raises:
        KubeError: What the cluster answers instead.
        ProvisioningError: If the cluster makes no token.
    """
    async with KubeClient(admin) as client:
        token = await _make(client, (*access_objects(), addons_binding()))
    return _by_token(admin, token)


async def ensure_multikueue_account(admin: Connection) -> None:
    """Make the account by which managers of MultiKueue come to a cluster as their worker.

    Made by the administrator, so that the account of a control plane needs no right to make roles:
    it reads the token alone. Again, brings the rights up to date.

    Raises:
        KubeError: What the cluster answers instead.
    """
    async with KubeClient(admin) as client:
        if await client.find(kinds.NAMESPACE, KUEUE_NAMESPACE) is None:
            namespace = {"name": KUEUE_NAMESPACE}
            await client.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": namespace})
        for each in worker_objects():
            await client.apply(each)


async def _make(client: KubeClient, objects: tuple[Object, ...]) -> str:
    """Apply the objects and return the token, once the cluster has made it."""
    for each in objects:
        await client.apply(each)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(TOKEN_S):
            while True:
                with contextlib.suppress(NotThere):
                    kept = await client.get(SECRET, TOKEN_SECRET, NAMESPACE)
                    text = (kept.get("data") or {}).get("token", "")
                    if text:
                        return base64.b64decode(text).decode()
                await asyncio.sleep(LOOK_S)
    raise ProvisioningError(
        Reason.FAILED,
        f"The cluster made no token for {NAMESPACE}/{TOKEN_SECRET} within {TOKEN_S:g} s.",
        "See whether its controller manager runs, then repeat it.",
    )


def _by_token(admin: Connection, token: str) -> Connection:
    return replace(
        admin, token=token, token_file=None, certificate_pem=None, key_pem=None, expires_at=None
    )
