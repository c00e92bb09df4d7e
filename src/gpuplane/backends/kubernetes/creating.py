"""Why the pods of a Job are not made: its status does not say it, only events of its controller.

Owns when such events are asked for: of few Jobs at a time, and only of those that were let go and
have no pod. A Deployment says the same in a condition of its own and is not asked for here.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpuplane.backends.kubernetes.failures import Failures
from gpuplane.backends.kubernetes.shapes import Main
from gpuplane.backends.kubernetes.views import ClusterView
from gpuplane.core.ids import AttemptId
from gpuplane.kit.clock import Clock
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.errors import KubeError
from gpuplane.kube.kinds import EVENT
from gpuplane.kube.webhooks import told

log = logging.getLogger("gpuplane.kubernetes")

LOOK_S = 3.0
"""How often it is looked whether pods are missing: a Job's controller needs less for the first."""
AGAIN_S = 15.0
"""How often the events of one Job are asked for."""
AT_ONCE = 10
"""Jobs that are asked about in one look: a webhook that is silent hinders all of them alike."""
FAILED_CREATE = "FailedCreate"
"""The reason of the event. Source: Kubernetes, `pkg/controller/controller_utils.go`."""


class PodTroubles:
    """Tells the view why the pods of its Jobs are not made."""

    def __init__(
        self, client: KubeClient, view: ClusterView, clock: Clock, on_news: Callable[[], None]
    ) -> None:
        """Ask nothing before `run`; `on_news` is called when something was learnt."""
        self._client = client
        self._view = view
        self._clock = clock
        self._on_news = on_news
        self._due: dict[AttemptId, float] = {}
        self._failures = Failures()

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await self._clock.sleep(LOOK_S)
            with self._failures.kept("a look for pods that are missing"):  # nobody begins it again
                await self.look()

    async def look(self) -> None:
        """Ask about those that have had no pod since the last look, the longest due first."""
        now = self._clock.monotonic()
        waiting = self._view.without_pods()
        self._due = {each: self._due.get(each, now + LOOK_S / 2) for each in waiting}
        ready = [each for each in sorted(waiting, key=self._due.__getitem__)
                 if self._due[each] <= now]  # fmt: skip
        for attempt_id in ready[:AT_ONCE]:
            self._due[attempt_id] = now + AGAIN_S
            with self._failures.kept("what keeps the pods of attempt", attempt_id):
                await self._ask(attempt_id, waiting[attempt_id])

    async def _ask(self, attempt_id: AttemptId, main: Main) -> None:
        wanted = {"involvedObject.uid": main.metadata.uid, "reason": FAILED_CREATE}
        try:
            found = await self._client.list(EVENT, main.metadata.namespace, fields=wanted)
        except KubeError as error:
            log.debug("why %s has no pod is not known: %s", main.metadata.name, error)
            return
        why = find_why(found)
        if why and self._view.take_trouble(attempt_id, why):
            self._on_news()


def find_why(events: Sequence[Mapping[str, Any]]) -> str:
    """Return the sentence of the newest event; empty without one."""
    newest = max(events, key=_seen_at, default=None)
    if newest is None:
        return ""
    return f"{newest.get('reason') or FAILED_CREATE}: {told(str(newest.get('message') or ''))}"


def _seen_at(event: Mapping[str, Any]) -> str:
    series = event.get("series") or {}
    metadata = event.get("metadata") or {}
    return str(
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or metadata.get("creationTimestamp")
        or ""
    )
