"""Puts together what registered clusters need: tools and handlers of their runs, their loop."""

import logging
from collections.abc import Awaitable, Callable

from gpuplane.backends.capabilities import Checkpoints
from gpuplane.backends.interface import AttemptRef, BackendError
from gpuplane.backends.kubernetes.inventory import observe_node
from gpuplane.db.database import Database
from gpuplane.db.questions import Question
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import ContactPolicy, LookTimes
from gpuplane.domains.jobs.service import Attempt
from gpuplane.domains.queues.service import CONNECT_HANDLER, tenancy_handler
from gpuplane.domains.runs.service import Handlers
from gpuplane.entry.backends import BackendRegistry
from gpuplane.entry.cluster_settings import ClusterSettings
from gpuplane.entry.home import Home
from gpuplane.entry.pipelines import words
from gpuplane.kit.clock import Clock
from gpuplane.kit.sealing import SealingKeys
from gpuplane.loops.clusters import registering
from gpuplane.loops.clusters.addons import adopt_step, make_step
from gpuplane.loops.clusters.deleting import drain, forget, release
from gpuplane.loops.clusters.loop import ClustersLoop, LookSettings
from gpuplane.loops.clusters.tools import AddonSettings, ClusterTools, Work, step
from gpuplane.loops.kueue import tenants
from gpuplane.loops.kueue.defaults import ensure_defaults
from gpuplane.loops.kueue.multikueue import connect_workers, join_managers
from gpuplane.loops.kueue.retiring import leave_managers

log = logging.getLogger("gpuplane.clusters")

HELM_AT_ONCE = 8
"""Helm processes of one server at a time: each takes 60 MiB."""


def make_tools(
    settings: ClusterSettings,
    backends: BackendRegistry,
    *,
    home: Home,
    database: Database,
    clock: Clock,
    sealing: SealingKeys,
) -> ClusterTools:
    """Return what steps and the loop of clusters work with."""

    async def ask_checkpoint(attempt: Attempt) -> None:
        backend = backends.find(attempt.cluster_id)
        if backend is None or not isinstance(backend, Checkpoints):
            return
        try:
            await backend.request_checkpoint(AttemptRef(attempt.id, attempt.epoch))
        except BackendError as error:
            log.info("attempt %s was not asked for a checkpoint: %s", attempt.id, error.message)

    return ClusterTools(
        database=database,
        clock=clock,
        sealing=sealing,
        home=home.path,
        observe_node=observe_node,
        ensure_defaults=ensure_defaults,
        ask_checkpoint=ask_checkpoint,
        worker_connect_s=settings.worker_connect_s,
        addons=AddonSettings(
            helm=settings.helm,
            charts=settings.charts,
            nfd_wait_ms=round(settings.nfd_detection_timeout_s * 1000),
            hami_port=settings.hami_scheduler_port,
            hami_threshold=settings.hami_utilization_threshold,
            hami_metrics=settings.enable_hami_metrics,
            receiver=settings.receiver,
            names=words(settings.addons),
        ),
    )


def register_steps(handlers: Handlers, tools: ClusterTools) -> None:
    """Add the handlers of registration and deletion to those that runs know."""
    works: dict[str, Work] = {
        "verify_connection": registering.verify_connection,
        "collect_node_info": registering.collect_node_info,
        "create_default_queues": registering.create_default_queues,
        "join_multikueue": join_managers,
        "make_available": registering.make_available,
        "adopt": adopt_step,
        "drain": drain,
        "release": release,
        "leave_managers": leave_managers,
        "forget": forget,
    }
    for name, work in works.items():
        handlers.add(clusters.handler_name(name), step(tools, work), reads_outputs=False)
    tenancy: dict[str, Work] = {
        "namespace": tenants.make_namespace,
        "isolation": tenants.isolate,
        "limits": tenants.limit,
        "queues": tenants.open_queues,
        "close": tenants.close_queues,
        "remove": tenants.remove_namespace,
    }
    for name, work in tenancy.items():
        handlers.add(tenancy_handler(name), step(tools, work), reads_outputs=False)
    handlers.add(CONNECT_HANDLER, step(tools, connect_workers), reads_outputs=False)
    for name, _, _, _ in clusters.REGISTER_STEPS:
        if name not in works:
            handlers.add(
                clusters.handler_name(name),
                step(tools, make_step(name)),
                reads_outputs=False,
                at_once=HELM_AT_ONCE,
            )


def make_refresh(backends: BackendRegistry, tools: ClusterTools) -> Callable[[], Awaitable[None]]:
    """Return what brings the backends of this process in step with the clusters stored."""
    known_ones = Question(tools.database, clusters.list_clusters)
    numbers_of = Question(tools.database, clusters.list_credential_numbers)

    async def refresh() -> None:
        known, numbers = await known_ones.ask(), await numbers_of.ask()
        await backends.refresh(known, numbers, tools.connection)

    return refresh


def make_loop(settings: ClusterSettings, tools: ClusterTools, looks: LookTimes) -> ClustersLoop:
    """Return the loop that looks at registered clusters."""
    contact = ContactPolicy(
        tries=settings.tries,
        base_ms=round(settings.retry_base_s * 1000),
        breaker_failures=settings.breaker_failures,
        breaker_window_ms=round(settings.breaker_window_s * 1000),
        breaker_open_ms=round(settings.breaker_open_s * 1000),
    )
    return ClustersLoop(tools, LookSettings(settings.look_s, settings.call_s, contact), looks)
