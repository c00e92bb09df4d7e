"""How clusters are reached and how they reach us: sealed kubeconfigs, keys for their metrics.

A kubeconfig comes in sealed and leaves only as a connection; nothing here shows one.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from gpuplane.core.ids import ClusterId
from gpuplane.db.sessions import ReadSession, WriteSession
from gpuplane.domains.clusters import repository
from gpuplane.domains.clusters.errors import (
    ClusterBusy,
    ClusterChanged,
    CredentialsGone,
    KeyNotFound,
)
from gpuplane.domains.clusters.rules import (
    REGISTERED_KIND,
    Cluster,
    ClusterKey,
    Credential,
    credential_context,
    cut_versions,
)
from gpuplane.domains.clusters.service.operating import (
    announce,
    get_cluster,
    get_live_cluster,
    store_changes,
)
from gpuplane.kit.sealing import SealingKeys
from gpuplane.kube.connections import Connection, read_kubeconfig

REWRAP_BATCH = 200


def replace_credential(
    session: WriteSession,
    key: UUID | str,
    credential: Credential,
    changes: Mapping[str, Any],
    now: int,
) -> Cluster:
    """Store a kubeconfig in the place of the one before, and what it says of the cluster.

    Raises:
        ClusterNotFound: If there is no such cluster, or it was deleted.
        ClusterChanged: If others were stored since these were looked at.
        ClusterBusy: If it is none that is reached by a kubeconfig.
    """
    cluster = get_live_cluster(session, key)
    if cluster.kind != REGISTERED_KIND:
        raise ClusterBusy(
            f"{cluster.name} is a {cluster.kind} cluster, which has no credentials.",
            fix="Register the cluster that these are for under a name of its own.",
        )
    kept = repository.find_credential(session, cluster.id)
    if credential.number != (1 if kept is None else kept.number + 1):
        raise ClusterChanged(
            f"The credentials of {cluster.name} were replaced by somebody else meanwhile.",
            fix="Look at them, and replace them again where needed.",
        )
    repository.store_credential(session, credential)
    tried = {"failures": 0, "failed_at": [], "next_try_at": None}
    store_changes(session, cluster, now, **{**tried, **cut_versions(changes)})
    said = f"{credential.stored_by} replaced its credentials."
    announce(
        session,
        cluster,
        "cluster.credentials_replaced",
        said,
        now,
        credential.stored_by,
        {"number": credential.number},
    )
    session.wake("inventory")
    return get_cluster(session, cluster.id)


def find_credential(session: ReadSession, cluster_id: ClusterId) -> Credential | None:
    """Return the sealed kubeconfig of a cluster, or None."""
    return repository.find_credential(session, cluster_id)


def get_credential(session: ReadSession, cluster: Cluster) -> Credential:
    """Return the sealed kubeconfig of a cluster.

    Raises:
        CredentialsGone: If none is kept of it.
    """
    kept = repository.find_credential(session, cluster.id)
    if kept is None:
        raise CredentialsGone(
            f"No credentials are kept for cluster {cluster.name}.",
            fix=f"Replace them: gpuplane clusters credentials {cluster.name} --kubeconfig FILE.",
        )
    return kept


def list_credential_numbers(session: ReadSession) -> dict[ClusterId, int]:
    """Return the number of each cluster's kubeconfig; it grows when it is replaced."""
    return repository.list_credential_numbers(session)


def open_connection(session: ReadSession, keys: SealingKeys, cluster: Cluster) -> Connection:
    """Return the way into a cluster.

    Raises:
        CredentialsGone: If no kubeconfig is kept of it.
        SealBroken: If its key is gone.
        BadKubeconfig: If what is kept cannot be used any more, such as an expired certificate.
    """
    kept = get_credential(session, cluster)
    text = keys.open(kept.sealed, credential_context(cluster.id, kept.number))
    return read_kubeconfig(text, kept.context or None)


def rewrap_credentials(
    session: WriteSession, sealing: SealingKeys, after: UUID | None = None
) -> tuple[int, UUID | None]:
    """Seal a batch of kubeconfigs by the current key; see `domains.secrets.service.Rewrap`."""
    batch = repository.credentials_after(session, after, REWRAP_BATCH)
    count = 0
    for kept in batch:
        context = credential_context(kept.cluster_id, kept.number)
        fresh = sealing.rewrap(kept.sealed, context)
        if fresh != kept.sealed and repository.store_rewrapped(session, kept, fresh):
            count += 1
    return count, batch[-1].cluster_id if len(batch) == REWRAP_BATCH else None


def issue_key(session: WriteSession, key: UUID | str, issued: ClusterKey) -> ClusterKey:
    """Store the hash of a key by which a cluster may push its metrics, and nothing else."""
    cluster = get_live_cluster(session, key)
    issued = replace(issued, cluster_id=cluster.id)
    repository.insert_key(session, issued)
    announce(
        session,
        cluster,
        "cluster.key_issued",
        f"{issued.issued_by} issued a key for its metrics ({issued.hint}…).",
        issued.issued_at,
        issued.issued_by,
        {"key_id": str(issued.id)},
    )
    return issued


def list_keys(session: ReadSession, key: UUID | str) -> tuple[ClusterKey, ...]:
    """Return the keys of a cluster, newest first."""
    return repository.list_keys(session, get_cluster(session, key).id)


def find_key(session: ReadSession, key_hash: str) -> ClusterKey | None:
    """Return the key that holds, of a SHA-256 in hexadecimal: whose metrics are pushed."""
    return repository.find_key(session, key_hash)


def revoke_key(session: WriteSession, key: UUID | str, key_id: UUID, actor: str, now: int) -> None:
    """Take a key back; what is pushed with it from now on is refused.

    Raises:
        KeyNotFound: If the cluster has no such key that holds.
    """
    cluster = get_cluster(session, key)
    if not repository.revoke_keys(session, cluster.id, now, key_id):
        raise KeyNotFound(
            f"Cluster {cluster.name} has no key {key_id} that holds.", fix="List its keys."
        )
    announce(
        session, cluster, "cluster.key_revoked", f"{actor} took a key back.", now, actor,
        {"key_id": str(key_id)},
    )  # fmt: skip
