"""Progress and checkpoints of running pods, read now and then by a command beside the job.

Owns when which pod is read: so many a second on a cluster, the one that waits longest first, and
those seldom that have reported nothing yet. A pod whose image has no shell is not asked again. What
a job reports last comes by the termination message of the container that keeps it, and its outputs
by its own (`observing`).
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpuplane.backends.kubernetes.failures import Failures
from gpuplane.backends.kubernetes.manifests.lastreports import MARK
from gpuplane.backends.kubernetes.reports import Report, read_report
from gpuplane.backends.kubernetes.settings import KubernetesSettings
from gpuplane.backends.kubernetes.shapes import Pod
from gpuplane.backends.kubernetes.views import ClusterView
from gpuplane.core.ids import AttemptId
from gpuplane.kit.clock import Clock
from gpuplane.kit.tasks import end_tasks
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import KubeError

log = logging.getLogger("gpuplane.kubernetes")

TAIL_BYTES = 4_096
"""Of each file: the last line alone counts."""
SCRIPT = (
    f'tail -c {TAIL_BYTES} "$GPUPLANE_PROGRESS" 2>/dev/null; echo; echo {MARK};'
    f' tail -c {TAIL_BYTES} "$GPUPLANE_CHECKPOINTS" 2>/dev/null; exit 0'
)
COMMAND = ("/bin/sh", "-c", SCRIPT)
NO_SHELL = frozenset({126, 127})
EXEC_S = 10.0
SELDOM = 8
"""How many times longer one waits that has reported nothing so far."""
LOOK_S = 1.0

Key = tuple[AttemptId, int, str]
"""Attempt, rank and uid of the pod: another pod of the rank begins anew."""


@dataclass(slots=True)
class Asked:
    """When a pod is read next, and what is known of it."""

    due_at: float
    has_reported: bool = False
    is_mute: bool = False


class Reporter:
    """Reads what the running pods of one cluster report."""

    def __init__(
        self,
        client: KubeClient,
        view: ClusterView,
        clock: Clock,
        settings: KubernetesSettings,
        on_report: Callable[[], None],
    ) -> None:
        """Read nothing before `run`; `on_report` is called when something was reported."""
        self._client = client
        self._view = view
        self._clock = clock
        self._settings = settings
        self._on_report = on_report
        self._asked: dict[Key, Asked] = {}
        self._busy: set[asyncio.Task[None]] = set()
        self._failures = Failures()

    async def run(self) -> None:
        """Read for ever, as many pods a second as a setting allows."""
        while True:
            with self._failures.kept("a look for what is reported"):  # nobody begins it again
                self.look()
            await self._clock.sleep(LOOK_S)

    async def stop(self) -> None:
        """End what is under way."""
        await end_tasks(list(self._busy))

    def look(self) -> None:
        """Begin to read those that are due, up to the limit of a second."""
        now = self._clock.monotonic()
        running = self._view.reporting_pods()
        for key in running.keys() - self._asked.keys():
            self._asked[key] = Asked(now + self._settings.report_s)
        for key in self._asked.keys() - running.keys():
            del self._asked[key]
        for key in plan_reads(self._asked, now, self._settings.report_reads_per_s):
            if len(self._busy) >= 2 * self._settings.report_reads_per_s:
                return
            self._asked[key].due_at = now + EXEC_S + self._settings.report_s
            task = asyncio.create_task(self._read(key, running[key]), name=f"report:{key[0]}")
            self._busy.add(task)
            task.add_done_callback(self._busy.discard)

    async def _read(self, key: Key, pod: Pod) -> None:
        with self._failures.kept("what is reported by", pod.metadata.name):
            await self._read_once(key, pod)

    async def _read_once(self, key: Key, pod: Pod) -> None:
        attempt_id, rank, _ = key
        try:
            done = await self._client.exec(
                pod.metadata.name, pod.metadata.namespace, pod.container_name, COMMAND, b"", EXEC_S
            )
        except KubeError as error:
            log.debug("what %s reports cannot be read: %s", pod.metadata.name, error)
            return
        asked = self._asked.get(key)
        if asked is None:
            return
        if done.exit_code in NO_SHELL:
            asked.is_mute = True
            return
        report = read_report(done.stdout.decode("utf-8", "replace"))
        if report != Report():
            asked.has_reported = True
            if self._view.take_report(attempt_id, rank, report, self._clock.now_ms()):
                self._on_report()
        times = 1 if asked.has_reported else SELDOM
        asked.due_at = self._clock.monotonic() + times * self._settings.report_s


def plan_reads(asked: Mapping[Key, Asked], now: float, limit: int) -> list[Key]:
    """Return whom to read now: those that are due, the longest due first, at most so many."""
    due = [(each.due_at, key) for key, each in asked.items() if each.due_at <= now]
    mute = {key for _, key in due if asked[key].is_mute}
    return [key for _, key in sorted(due) if key not in mute][:limit]
