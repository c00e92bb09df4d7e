"""The steps that bring add-ons in, one Helm operation a cluster at a time.

A chart that cannot be had, or an add-on that will not come up, is stored with its reason and told
by name; the registration goes on without it.
"""

import asyncio
import base64
import hashlib
import secrets
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gpuplane.core.ids import ClusterId
from gpuplane.core.runs.plans import Answer, Completed, Failed, Sleeping, StepCall
from gpuplane.db.sessions import WriteSession
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import NOT_ASKED_FOR, AddonStatus, Cluster, ClusterKey
from gpuplane.kit.ids import new_id
from gpuplane.kube import kinds
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.helm import Chart, Helm, HelmError, Release
from gpuplane.loops.clusters.catalogue import (
    Addon,
    Decision,
    Situation,
    addons_of,
    compute_company,
    compute_values,
    decide,
    find_addon,
    load_addons,
    merge_values,
)
from gpuplane.loops.clusters.registering import load_facts, summarise
from gpuplane.loops.clusters.tools import ClusterTools

TRIES = 3
"""The first and two more (11.2); the plan spaces them 60 s apart."""
GIVES_UP_AT_ONCE = frozenset(
    {
        "NoBinary",
        "ChartNotAvailable",
        "InvalidValues",
        "ChartFailed",
        "Forbidden",
        "Unauthorized",
        "NoSuchKind",
    }
)
"""What another try does not mend."""
HELM_S = 600.0
NFD_TRIES = 2
CHARTS = "GPUPLANE_CLUSTERS_CHARTS"
KEY_SECRET = "gpuplane-metrics-key"
HANDED_OVER_BY = "system"
"""Who issues the key that a cluster's Prometheus has; others are people's."""
SCC_ROLE = "system:openshift:scc:{}"
"""The ClusterRole that OpenShift has for each of its security context constraints."""

_queues: defaultdict[ClusterId, asyncio.Lock] = defaultdict(asyncio.Lock)
"""Helm changes of one cluster, one after the other; other clusters do not wait for them."""

Work = Callable[[ClusterTools, Cluster, Mapping[str, Any], StepCall], Awaitable[Answer]]


def make_step(name: str) -> Work:
    """Return the work of one step that brings add-ons in."""

    async def run(
        tools: ClusterTools, cluster: Cluster, given: Mapping[str, Any], call: StepCall
    ) -> Answer:
        if name == "deploy_nfd" and call.state is not None:
            return await _await_labels(tools, cluster, call)
        addons = addons_of(name)
        wanted = given.get("addons")
        names = frozenset(wanted) if wanted is not None else None
        if tools.addons.names:
            allowed = frozenset(tools.addons.names)
            names = allowed if names is None else allowed & names
        outcome: dict[str, str] = {}
        for addon in addons:
            status = await bring_in(tools, cluster, addon, names, call.attempt)
            if isinstance(status, Failed):
                return status
            state = status.state.replace("_", " ")
            outcome[addon.name] = f"{state}. {status.message}".strip()
        if name == "deploy_nfd" and outcome.get("nfd", "").startswith("installed"):
            return _sleep_for_labels(tools, 1)
        return Completed(outcome, message=tell_outcome(outcome))

    return run


def tell_outcome(outcome: Mapping[str, str]) -> str:
    """Return what became of each add-on, as one sentence."""
    return "; ".join(f"{name}: {said.rstrip('.')}" for name, said in outcome.items())


async def bring_in(
    tools: ClusterTools,
    cluster: Cluster,
    addon: Addon,
    wanted: frozenset[str] | None,
    attempt: int,
) -> AddonStatus | Failed:
    """Bring one add-on in where it fits, store what became of it, or ask for another try."""
    if wanted is not None and addon.name not in wanted:
        known = await tools.database.read(lambda s: clusters.list_addons(s, cluster.id))
        before = next((each for each in known if each.name == addon.name), None)
        if before is not None and before.state in ("installed", "adopted", "present"):
            return before  # it is there: who asks for others says nothing of it
        return await _note(tools, cluster, addon, "left_out", NOT_ASKED_FOR)
    if not tools.addons.helm:
        return await _note(tools, cluster, addon, "left_out", "No helm is set on this server.")
    addon = addon.for_kubernetes(cluster.kubernetes_version)
    try:
        async with _queues[cluster.id]:
            helm = await tools.helm(cluster)
            seen = await look(tools, cluster, helm, wanted)
            adopted = await _adopted(tools, cluster)
            company = compute_company(addon, seen, adopted)
            return await _act(tools, cluster, addon, decide(addon, seen, adopted), company, helm)
    except HelmError as error:
        if error.reason == "OwnedByOthers":
            said = (
                "Parts of it were installed without Helm. `gpuplane clusters adopt` takes it over."
            )
            return await _note(tools, cluster, addon, "present", said)
        if error.reason not in GIVES_UP_AT_ONCE and attempt < TRIES:
            return Failed(f"Helm{error.reason}", f"{addon.name}: {error.message}")
        return await _note(tools, cluster, addon, "failed", _told(addon, error))


async def look(
    tools: ClusterTools, cluster: Cluster, helm: Helm, wanted: frozenset[str] | None
) -> Situation:
    """Return what decides about add-ons on a cluster."""
    facts = await load_facts(tools, cluster)
    releases = tuple(await helm.list())
    listed = load_addons()
    groups = {each.served for each in listed if each.served}
    groups |= {group for each in listed for group in each.needs}
    async with tools.client(cluster) as client:
        served = {group for group in sorted(groups) if await client.served(group) is not None}
    in_place = {
        addon.name
        for addon in load_addons()
        if addon.served in served or any(addon.is_chart_of(release) for release in releases)
    }
    return Situation(
        kubernetes_version=cluster.kubernetes_version,
        distribution=cluster.distribution,
        vendors=frozenset(summarise(facts)),
        served=frozenset(served),
        releases=releases,
        wanted=wanted,
        in_place=frozenset(in_place),
        has_receiver=bool(tools.addons.receiver),
    )


async def _act(
    tools: ClusterTools,
    cluster: Cluster,
    addon: Addon,
    decision: Decision,
    company: frozenset[str],
    helm: Helm,
) -> AddonStatus:
    release = decision.release
    if decision.verb == "leave_out":
        return await _note(tools, cluster, addon, "left_out", decision.reason)
    if decision.verb == "present":
        said = f"{decision.reason} `gpuplane clusters adopt` takes it over."
        return await _note(tools, cluster, addon, "present", said, release)
    state = "installed"
    if release is not None and (release.namespace, release.name) != (
        addon.namespace,
        addon.release,
    ):
        state = "adopted"
    values = compute_values(addon, asdict(tools.addons), cluster.role, company)
    if addon.name == "prometheus" and tools.addons.receiver:
        written = await _remote_write(tools, cluster, addon)
        values = merge_values(values, {"prometheus": written})
    # What somebody else gave a release that was adopted stays, until it gets another version.
    if (
        decision.verb == "keep"
        and release is not None
        and (state == "adopted" or await _has_values(helm, release, values))
    ):
        return await _note(tools, cluster, addon, state, "", release)
    if cluster.distribution == "openshift" and addon.openshift.scc:
        async with tools.client(cluster) as client:
            await grant_scc(client, addon)
    if release is not None:
        await free(helm, release)
    made = await helm.upgrade_install(
        addon.release if release is None else release.name,
        addon.namespace if release is None else release.namespace,
        chart_of(addon, tools.addons.charts),
        values,
        timeout_s=HELM_S,
        # Labels are waited for afterwards, for as long as is set: not for pods before.
        wait=addon.ready == "workload",
    )
    return await _note(tools, cluster, addon, state, "", made)


async def free(helm: Helm, release: Release) -> None:
    """End what was cut off in a release of ours, which Helm refuses to touch while it is pending.

    Nobody else changes it: changes of one cluster wait for one another here.
    """
    if not release.status.startswith("pending-"):
        return
    if release.revision > 1:
        await helm.rollback(release.name, release.namespace)
    else:
        await helm.uninstall(release.name, release.namespace)


async def adopt(tools: ClusterTools, cluster: Cluster, addon: Addon) -> AddonStatus | Failed:
    """Take over what is installed already: a release as it is, objects without one by Helm."""
    addon = addon.for_kubernetes(cluster.kubernetes_version)
    try:
        async with _queues[cluster.id]:
            helm = await tools.helm(cluster)
            for release in await helm.list():
                if addon.is_chart_of(release):
                    said = "It is brought to the pinned version by the next registration."
                    kept = release.chart != f"{addon.chart_name}-{addon.version}"
                    return await _note(
                        tools, cluster, addon, "adopted", said if kept else "", release
                    )
            seen = await look(tools, cluster, helm, None)
            company = compute_company(addon, replace(seen, wanted=frozenset()))
            made = await helm.upgrade_install(
                addon.release,
                addon.namespace,
                chart_of(addon, tools.addons.charts),
                compute_values(addon, asdict(tools.addons), cluster.role, company),
                timeout_s=HELM_S,
                take_ownership=True,
            )
            return await _note(tools, cluster, addon, "adopted", "", made)
    except HelmError as error:
        return Failed(f"Helm{error.reason}", _told(addon, error), is_final=True)


async def adopt_step(
    tools: ClusterTools, cluster: Cluster, given: Mapping[str, Any], call: StepCall
) -> Answer:
    """Do the step that adopts one add-on."""
    addon = find_addon(str(given["addon"]))
    if addon is None:
        return Failed("AddonNotFound", f"The list has no add-on {given['addon']!r}.", is_final=True)
    done = await adopt(tools, cluster, addon)
    if isinstance(done, Failed):
        return done
    return Completed({"addon": done.name, "release": done.release_name, "state": done.state})


def chart_of(addon: Addon, folder: str) -> Chart:
    """Return where a chart is: the file of this version in the folder, else the network."""
    if folder:
        for name in addon.file_names:
            path = Path(folder) / name
            if path.is_file():
                return Chart(str(path))
    if not addon.repo and not addon.chart.startswith("oci://"):
        raise HelmError(
            "ChartNotAvailable",
            f"{addon.chart} is in no repository; put {addon.chart_name}-{addon.version}.tgz into "
            f"the folder of {CHARTS}.",
        )
    return Chart(addon.chart, addon.version, addon.repo or None)


async def grant_scc(client: KubeClient, addon: Addon) -> None:
    """Let an add-on's accounts use those constraints of OpenShift that it needs, where it is."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": addon.namespace}}
    await client.apply(namespace)
    for constraint, accounts in sorted(addon.openshift.scc.items()):
        name = f"gpuplane-{addon.name}-scc-{constraint}"
        await client.apply(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "RoleBinding",
                "metadata": {"name": name, "namespace": addon.namespace},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": SCC_ROLE.format(constraint),
                },
                "subjects": [
                    {"kind": "ServiceAccount", "name": account, "namespace": addon.namespace}
                    for account in accounts
                ],
            }
        )


async def _has_values(helm: Helm, release: Release, values: dict[str, Any]) -> bool:
    """Return whether a release has these values: settings may have changed since."""
    given = await helm.get_values(release.name, release.namespace)
    return bool(_without_nulls(given) == _without_nulls(values))


def _without_nulls(value: Any) -> Any:
    """Return values without those that only take a default away, and without what is empty."""
    if not isinstance(value, Mapping):
        return value
    cleaned = {key: _without_nulls(each) for key, each in value.items()}
    return {key: each for key, each in cleaned.items() if each is not None and each != {}}


async def _remote_write(tools: ClusterTools, cluster: Cluster, addon: Addon) -> dict[str, Any]:
    """Return the values that make Prometheus write to the receiver, with a key of the cluster."""
    async with tools.client(cluster) as client:
        if not await _has_key(tools, cluster, client, addon.namespace):
            await _hand_over_key(tools, cluster, client, addon.namespace)
    write = {
        "url": tools.addons.receiver,
        "authorization": {"credentials": {"name": KEY_SECRET, "key": "key"}},
    }
    labels = {"cluster": cluster.name, "cluster_id": str(cluster.id)}
    return {"prometheusSpec": {"remoteWrite": [write], "externalLabels": labels}}


async def _has_key(
    tools: ClusterTools, cluster: Cluster, client: KubeClient, namespace: str
) -> bool:
    """Return whether Prometheus there has a key that holds: not one of before it was revoked."""
    kept = await client.find(kinds.SECRET, KEY_SECRET, namespace)
    text = ((kept or {}).get("data") or {}).get("key", "")
    try:
        digest = hashlib.sha256(base64.b64decode(text, validate=True)).hexdigest()
    except ValueError:
        return False
    known = await tools.database.read(lambda s: clusters.find_key(s, digest))
    return known is not None and known.cluster_id == cluster.id


async def _hand_over_key(
    tools: ClusterTools, cluster: Cluster, client: KubeClient, namespace: str
) -> None:
    """Issue a key of the cluster and put it where its Prometheus reads it, and nowhere else.

    One that was handed over before is nobody's any more, and is revoked.
    """
    plain = "gpc_" + secrets.token_urlsafe(32)
    now = tools.clock.now_ms()
    key = ClusterKey(
        id=new_id(),
        cluster_id=cluster.id,
        key_hash=hashlib.sha256(plain.encode()).hexdigest(),
        hint=plain[:11],
        issued_at=now,
        issued_by=HANDED_OVER_BY,
    )

    def issue(session: WriteSession) -> None:
        for each in clusters.list_keys(session, cluster.id):
            if each.issued_by == HANDED_OVER_BY and each.revoked_at is None:
                clusters.revoke_key(session, cluster.id, each.id, HANDED_OVER_BY, now)
        clusters.issue_key(session, cluster.id, key)

    await tools.database.write("clusters.issue_key", issue)
    await client.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    await client.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": KEY_SECRET, "namespace": namespace},
            "stringData": {"key": plain},
        }
    )


def _sleep_for_labels(tools: ClusterTools, number: int) -> Sleeping:
    until = tools.clock.now_ms() + tools.addons.nfd_wait_ms
    return Sleeping(until, {"look": number}, "Waiting for the labels of its nodes.")


async def _await_labels(tools: ClusterTools, cluster: Cluster, call: StepCall) -> Answer:
    """Look whether nodes have labels; after two looks go on by what else tells, with a warning."""
    facts = await load_facts(tools, cluster)
    number = int(call.state["look"])
    labelled = sum(each.nfd_detected for each in facts)
    found = {"nfd": "installed", "labelled": labelled, "looks": number}
    if labelled:
        return Completed(found)
    if number < NFD_TRIES:
        return _sleep_for_labels(tools, number + 1)
    waited = f"{NFD_TRIES * tools.addons.nfd_wait_ms / 1000:g}"
    said = f"No node had labels after {waited} s; hardware is told by what else there is."
    now = tools.clock.now_ms()

    def warn(session: WriteSession) -> None:
        for each in clusters.list_addons(session, cluster.id):
            if each.name == "nfd":
                clusters.note_addon(session, replace(each, message=said, updated_at=now))

    await tools.database.write("clusters.note_addon", warn)
    return Completed({**found, "warning": said}, message=said)


async def _adopted(tools: ClusterTools, cluster: Cluster) -> frozenset[str]:
    known = await tools.database.read(lambda s: clusters.list_addons(s, cluster.id))
    return frozenset(
        f"{each.namespace}/{each.release_name}" for each in known if each.state == "adopted"
    )


def _told(addon: Addon, error: HelmError) -> str:
    if error.reason == "ChartNotAvailable":
        file = f"{addon.chart_name}-{addon.version}.tgz"
        fix = "" if CHARTS in error.message else f" Or put {file} into the folder of {CHARTS}."
        return f"The chart {addon.chart} {addon.version} cannot be had: {error.message}{fix}"
    return f"{error.reason}: {error.message}"


async def _note(
    tools: ClusterTools,
    cluster: Cluster,
    addon: Addon,
    state: str,
    message: str,
    release: Release | None = None,
) -> AddonStatus:
    status = AddonStatus(
        cluster_id=cluster.id,
        name=addon.name,
        state=state,
        release_name=addon.release if release is None else release.name,
        namespace=addon.namespace if release is None else release.namespace,
        chart=addon.chart_name,
        chart_version=addon.version if release is None else release.chart.rpartition("-")[2],
        message=message[:1_000],
        updated_at=tools.clock.now_ms(),
    )
    await tools.database.write("clusters.note_addon", lambda s: clusters.note_addon(s, status))
    return status
