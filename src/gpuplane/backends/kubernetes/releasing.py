"""Helm releases of attempts: started once, and taken away again.

    1  the chart is rendered and checked                (nothing is written)
    2  the record says `accepted`
    3  namespace, claims, the anchor and the Secret     (an anchor alone makes no pod)
    4  the record says `started`                        (an eviction may be first: then never)
    5  Helm installs what was checked                   (pods wait behind their gate)
    6  the anchor says that it was let go

A crash between any two is made good by the next call: a release that is there is not installed
again, one that was cut off is taken away first. Everything belongs to the anchor, so what a late
installation makes after its deletion is collected by the cluster, and its pods never pass the gate.

Where Kueue admits the anchor is a Job that stands in line (`manifests/standins`). After 4 it is
told its queue, and 5 waits until Kueue has admitted it: hooks would wait for pods that may not run.
What is then installed is taken off again when Kueue takes the quota back (`standing`).
"""

import asyncio
import contextlib
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpuplane.backends.interface import (
    STARTING,
    AttemptPlan,
    AttemptRef,
    BackendError,
    Unavailable,
)
from gpuplane.backends.kubernetes import names, starting
from gpuplane.backends.kubernetes.chartplaces import ChartTools, find_chart
from gpuplane.backends.kubernetes.fencing import RecordStore
from gpuplane.backends.kubernetes.manifests.chartrules import failure, refusal
from gpuplane.backends.kubernetes.manifests.charts import (
    Release,
    compute_release,
    rendered_name,
    values_of,
    wrap_chart,
)
from gpuplane.backends.kubernetes.manifests.pods import ranks_of
from gpuplane.backends.kubernetes.manifests.standins import MANAGER
from gpuplane.backends.kubernetes.manifests.workloads import Workload, queue_labels
from gpuplane.backends.kubernetes.records import (
    ACCEPTED,
    RELEASE_KIND,
    STAND_IN,
    STARTED,
    Record,
    decide_accept,
    decide_evict,
    decide_start,
)
from gpuplane.backends.kubernetes.settings import KubernetesSettings
from gpuplane.core.ids import AttemptId
from gpuplane.core.reasons import Word
from gpuplane.kit.failpoints import failpoint
from gpuplane.kit.tasks import end_tasks
from gpuplane.kit.yaml_texts import UnreadableYaml, load_documents
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import Conflict, KubeError, NotThere
from gpuplane.kube.helm import Chart, Helm, HelmError
from gpuplane.kube.kinds import JOB, SECRET
from gpuplane.kube.tenancy import namespace_of
from gpuplane.kube.webhooks import find_silent

CHECKS_AT_ONCE = 2
"""Charts of a cluster being checked at a submit: each is a process that renders."""

_LATER = frozenset({"Unreachable", "Unauthorized", "Busy"})
"""What says nothing of the chart: the same may succeed at the next turn."""


class Releases:
    """The Helm releases of one cluster; one operation at a time, as Helm's own records want it."""

    def __init__(
        self,
        client: KubeClient,
        records: RecordStore,
        cluster_id: str,
        settings: KubernetesSettings,
        tools: ChartTools,
        home: Path,
        now_ms: Callable[[], int],
    ) -> None:
        """Start nothing yet; `home` is a folder for Helm's caches."""
        self._client = client
        self._records = records
        self._cluster_id = cluster_id
        self._settings = settings
        self._tools = tools
        self._now_ms = now_ms
        self._helm = Helm(client.connection, binary=tools.helm or "helm", home=home)
        self._operation = asyncio.Lock()
        self._checking = asyncio.Semaphore(CHECKS_AT_ONCE)
        self._starts: dict[AttemptId, asyncio.Task[None]] = {}

    async def ensure(self, plan: AttemptPlan, secrets: Mapping[str, str]) -> None:
        """Start an attempt unless it was started or evicted before.

        Raises:
            Unavailable: While Helm is at it, or if the cluster cannot be reached: ask again.
            BackendError: If the chart cannot run; nothing of it stays.
        """
        attempt_id = plan.ref.attempt_id
        task = self._starts.get(attempt_id)
        if task is None:
            task = asyncio.create_task(self._start(plan, secrets), name=f"release:{attempt_id}")
            self._starts[attempt_id] = task
        done, _ = await asyncio.wait([task], timeout=self._tools.wait_s)
        if not done:
            raise Unavailable(STARTING, "Helm is still installing the chart")
        if self._starts.get(attempt_id) is task:
            del self._starts[attempt_id]
        if task.cancelled():
            raise Unavailable("Unreachable", "the cluster is being let go of")
        error = task.exception()
        if error is not None:
            raise error

    async def check(self, plan: AttemptPlan) -> None:
        """Render and check the chart of a job, and write nothing; see `ChecksCharts`."""
        async with self._checking:
            await self._render(plan)

    async def uninstall(self, record: Record) -> None:
        """Take the release of an attempt away; again, when that was done, does nothing.

        The anchor goes last, and all that is left with it: it tells that there is work to do.
        """
        async with self._operation:
            self._starts.pop(record.id, None)
            await self._remove(record)
            await self._client.delete(
                starting.kind_named(record.kind),
                record.name,
                record.namespace,
                propagation="Background",
            )

    async def withdraw(self, record: Record) -> None:
        """Take a release off the cluster whose quota was taken back; its Job stands in line."""
        async with self._operation:
            job = await self._client.find(JOB, record.name, record.namespace)
            if job is None or not job["spec"].get("suspend"):
                return
            await self._remove(record)
            patch = {
                "metadata": {
                    "uid": job["metadata"]["uid"],
                    "annotations": {names.INSTALLED: None},
                }
            }
            with contextlib.suppress(NotThere):
                await self._client.patch(JOB, record.name, patch, record.namespace)

    async def _remove(self, record: Record) -> None:
        """Have Helm take its release away, and what it keeps of it."""
        with contextlib.suppress(HelmError):
            # Only for its hooks and its own record: the anchor takes everything else along.
            await self._helm.uninstall(
                record.name, record.namespace, wait=False, timeout_s=self._tools.timeout_s
            )
        labels = {"owner": "helm", "name": record.name}
        for each in await self._client.list(SECRET, record.namespace, labels):
            await self._client.delete(SECRET, each["metadata"]["name"], record.namespace)

    async def stop(self) -> None:
        """End what is under way; the next process goes on with it."""
        await end_tasks(list(self._starts.values()))

    async def _start(self, plan: AttemptPlan, secrets: Mapping[str, str]) -> None:
        known, _ = await self._records.load(plan.ref.attempt_id)
        if known is not None:
            known = await self._accept(plan, None)
            if known is None or known.is_over or known.evict_reason:
                return
            if await self._is_let_go(known):
                return
        release, source = await self._render(plan)
        record = await self._accept(plan, release)
        failpoint("kubernetes.release.accepted")
        if record is None or record.is_over or record.evict_reason:
            return
        patch = {"metadata": {"labels": queue_labels(plan)}} if plan.local_queue else {}
        workload = Workload(release.namespace, release.anchor, patch, claims=release.claims)
        anchor: Mapping[str, Any] | None
        if plan.local_queue and record.fate == STARTED:
            # Applied anew it would be held back again, whatever Kueue said of it.
            anchor = await self._client.find(JOB, record.name, record.namespace)
        else:
            anchor = await starting.make(
                self._client, self._records, plan, workload, secrets, self._cluster_id
            )
        if anchor is None:
            return  # it was started, and what became of it is seen by observe
        if record.fate == ACCEPTED:
            await self._records.change(
                plan.ref.attempt_id,
                lambda found: decide_start(found, plan.ref, self._now_ms()),
            )
        failpoint("kubernetes.release.started")
        if plan.local_queue and not await self._is_admitted(plan, workload, anchor):
            return
        uid = str(anchor["metadata"]["uid"])
        is_there = await self._install_checked(plan, release, source, uid)
        failpoint("kubernetes.release.installed")
        if not plan.local_queue:
            await starting.release(self._client, workload, anchor)
        elif is_there:
            await self._note_installed(record, uid)

    async def _is_admitted(
        self, plan: AttemptPlan, workload: Workload, job: Mapping[str, Any]
    ) -> bool:
        """Hand a Job to Kueue; return whether it was admitted already.

        Raises:
            BackendError: If its cluster would run pods of the Job itself.
        """
        if job["spec"].get("managedBy") != MANAGER:
            await self._give_up(plan.ref)
            raise refusal(
                "charts under Kueue need Kubernetes 1.32 or newer (spec.managedBy of Jobs)",
                "Name a cluster with embedded admission.",
                "deployment_type",
            )
        await starting.release(self._client, workload, job)
        name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
        found = await self._client.find(JOB, name, namespace)
        return found is not None and not found["spec"].get("suspend")

    async def _note_installed(self, record: Record, uid: str) -> None:
        """Say on the Job that its chart is installed: from now on it goes with its quota."""
        marks = {"uid": uid, "annotations": {names.INSTALLED: "true"}}
        with contextlib.suppress(NotThere, Conflict):
            await self._client.patch(JOB, record.name, {"metadata": marks}, record.namespace)

    async def _install_checked(
        self, plan: AttemptPlan, release: Release, source: Mapping[str, Any], owner_uid: str
    ) -> bool:
        """Have Helm install a release, and say in the contract's words what hindered it."""
        try:
            return await self._install(plan.ref, release, source, owner_uid)
        except HelmError as error:
            if error.reason in _LATER:
                raise Unavailable(error.reason, error.message) from error
            silent = find_silent(error.message)
            if silent is not None:  # what Helm left of it is made anew at the next turn
                raise Unavailable(error.reason, silent.sentence) from error
            is_final = error.reason == "Invalid"
            await self._give_up(plan.ref, Word.START_REFUSED if is_final else Word.START_FAILED)
            if is_final:  # the same objects would be refused again
                fix = "Mend the chart or the values."
                raise refusal(f"the cluster refuses it: {error.message}", fix) from error
            raise failure(f"Helm: {error.message}", "Look at the chart.") from error

    async def _accept(self, plan: AttemptPlan, release: Release | None) -> Record | None:
        """Return the record of the attempt, made where there is none and the release is known."""
        labels = plan.spec.labels if plan.spec is not None else {}
        return await self._records.change(
            plan.ref.attempt_id,
            lambda found: decide_accept(
                found,
                plan.ref,
                self._now_ms(),
                namespace=release.namespace if release else "",
                kind=STAND_IN if plan.local_queue else RELEASE_KIND,
                name=release.name if release else "",
                ranks=ranks_of(plan),
                port=release.port if release else None,
                service=release.service if release else "",
                keeps_longer=labels.get("debug") == "true",
                job_id=str(plan.job_id),
            ),
        )

    async def _is_let_go(self, record: Record) -> bool:
        """Return whether nothing is to be done for a release.

        It was installed whole, it stands in Kueue's line, or somebody took it away since.
        """
        kind = starting.kind_named(record.kind)
        anchor = await self._client.find(kind, record.name, record.namespace)
        if anchor is None:
            return record.fate == STARTED
        marks = anchor["metadata"].get("annotations") or {}
        if not record.has_stand_in:
            return starting.RELEASED in marks
        waits = anchor["spec"].get("suspend") and starting.RELEASED in marks
        return names.INSTALLED in marks or bool(waits)

    async def _render(self, plan: AttemptPlan) -> tuple[Release, Mapping[str, Any]]:
        """Return what the chart makes, checked, and its `Chart.yaml`."""
        if not self._tools.helm:
            raise refusal(
                "this server has no Helm to install charts with",
                "Have an administrator set GPUPLANE_CLUSTERS_HELM.",
                "deployment_type",
            )
        version = (await self._client.version()).text
        namespace = namespace_of(plan.tenant_name)
        try:
            with contextlib.ExitStack() as place:
                found = find_chart(self._tools, plan)
                chart = await asyncio.to_thread(place.enter_context, found)
                text = await self._helm.template(
                    rendered_name(plan),
                    namespace,
                    chart,
                    values_of(plan),
                    kube_version=version,
                    memory_mib=self._tools.memory_mib,
                )
                about = await self._helm.show_chart(chart, memory_mib=self._tools.memory_mib)
            documents = await asyncio.to_thread(load_documents, text)
            source = load_documents(about)
        except HelmError as error:
            if error.reason == "InvalidValues":
                raise refusal(error.message, "Mend the values.", "spec.chart.values") from error
            if error.reason == "ChartFailed":  # its templates would fail the same way again
                raise refusal(f"Helm: {error.message}", "Mend the chart or the values.") from error
            if error.reason == "OutOfMemory":
                raise refusal(
                    f"rendering it takes more than {self._tools.memory_mib} MiB of memory",
                    "Have its templates make less, or have an administrator raise"
                    " GPUPLANE_CLUSTERS_CHART_MEMORY_MIB.",
                ) from error
            raise failure(f"Helm: {error.message}", "Look at the chart.") from error
        except UnreadableYaml as error:
            raise refusal(f"what it renders is no YAML: {error}", "Look at the chart.") from error
        release = compute_release(plan, self._settings, self._cluster_id, documents)
        return release, source[0] if source and isinstance(source[0], dict) else {}

    async def _install(
        self, ref: AttemptRef, release: Release, source: Mapping[str, Any], owner_uid: str
    ) -> bool:
        """Have Helm install a release that is not there; False where it may not run any more.

        Raises:
            HelmError: What hindered it.
        """
        async with self._operation:
            record, _ = await self._records.load(ref.attempt_id)
            if record is None or record.is_over or record.evict_reason:
                return False  # taking it away waits for this very lock, or is done
            if record.has_stand_in:
                job = await self._client.find(JOB, record.name, record.namespace)
                if job is None or job["spec"].get("suspend"):
                    return False  # its quota was taken back
            there = await self._helm.status(release.name, release.namespace)
            if there is not None and there.status == "deployed":
                return True
            if there is not None:  # cut off, or failed and never let go: made anew
                await self._helm.uninstall(release.name, release.namespace, wait=False)
            with tempfile.TemporaryDirectory(prefix="gpuplane-release-") as place:
                _write(Path(place), wrap_chart(release, source, owner_uid))
                await self._helm.upgrade_install(
                    release.name,
                    release.namespace,
                    Chart(place),
                    timeout_s=self._tools.timeout_s,
                    wait=False,
                    create_namespace=False,
                )
            return True

    async def _give_up(self, ref: AttemptRef, word: Word = Word.START_FAILED) -> None:
        """Have the settler take away what an installation left that failed."""
        with contextlib.suppress(KubeError, NotThere, BackendError):
            await self._records.change(
                ref.attempt_id,
                lambda found: decide_evict(found, ref, str(word), self._now_ms()),
            )


def _write(folder: Path, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        file = folder / path
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
