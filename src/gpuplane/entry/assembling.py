"""Makes the loops and the API's dependencies out of the parts of one process."""

import dataclasses
import os
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import httpx2
import msgspec
from prometheus_client import CollectorRegistry

from gpuplane.api.app import AppDependencies
from gpuplane.api.authentication import Authenticator
from gpuplane.api.limits import Limits
from gpuplane.api.oidc import OidcIssuer, OidcLogins
from gpuplane.api.routers import load_routers
from gpuplane.backends.kubernetes.chartplaces import find_own
from gpuplane.core.runs.boards import Rules
from gpuplane.core.scheduling.policy import Boosts, PlacementPolicy, Policy, PreemptionLimits
from gpuplane.core.workloads import Priority
from gpuplane.db.database import Database
from gpuplane.db.leases import LeaseKeeper
from gpuplane.domains.billing import service as billing
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.endpoints.registering import DEPLOYMENTS, REGISTRATIONS
from gpuplane.domains.clusters.service import LookTimes
from gpuplane.domains.events.service import WebhookPolicy
from gpuplane.domains.jobs.endpoints.parts import WorkspaceFolder
from gpuplane.domains.jobs.service import (
    SubmitLimits,
    Surroundings,
    UptimeTargets,
    count_offers,
    count_queue_users,
    list_tenant_jobs,
)
from gpuplane.domains.jobs.service.due import WaitTargets
from gpuplane.domains.jobs.service.holding import find_holds
from gpuplane.domains.jobs.service.rewrapping import OUTPUTS_CONTEXT, rewrap_outputs
from gpuplane.domains.jobs.service.using import find_use as find_jobs
from gpuplane.domains.nodes import service as nodes
from gpuplane.domains.nodes.endpoints import NODE_READS, DeviceUse
from gpuplane.domains.pipelines import service as pipelines
from gpuplane.domains.pipelines.service import TRIGGERS
from gpuplane.domains.pipelines.steps import StepTools
from gpuplane.domains.pipelines.steps import register as register_steps
from gpuplane.domains.placements import service as placements
from gpuplane.domains.queues import service as queues
from gpuplane.domains.runs.service import Handlers, RunPolicy, policy_for
from gpuplane.domains.secrets import service as secrets
from gpuplane.domains.usage import service as usage
from gpuplane.entry import clusters as registered
from gpuplane.entry.backends import BackendRegistry
from gpuplane.entry.described import SettingsError
from gpuplane.entry.home import Home
from gpuplane.entry.pipelines import make_step_tools, words
from gpuplane.entry.settings import Settings
from gpuplane.kit.clock import Clock
from gpuplane.kit.feeds import Feed, Seats
from gpuplane.kit.loops import LoopBody, LoopRunner
from gpuplane.kit.sealing import SealingKeys
from gpuplane.kit.tracing import Tracing
from gpuplane.loops.deciding.process import DecisionProcess
from gpuplane.loops.dispatcher import DispatcherLoop
from gpuplane.loops.inventory import InventoryLoop
from gpuplane.loops.kueue.loop import KueueLoop
from gpuplane.loops.learner import LearnerLoop
from gpuplane.loops.meters import JobMeters, MetersLoop
from gpuplane.loops.monitor import MonitorLoop
from gpuplane.loops.observer import ObserverLoop
from gpuplane.loops.pipeline_meters import PipelineMeters, PipelineMetersLoop
from gpuplane.loops.planner import WorldPlanner
from gpuplane.loops.relay import RelayLoop
from gpuplane.loops.repartitioner import RepartitionerLoop
from gpuplane.loops.retention import Retention, RetentionLoop
from gpuplane.loops.runs.loop import RunsLoop, WorkerSettings
from gpuplane.loops.runs.meters import RunMeters
from gpuplane.loops.scheduler.loop import SchedulerLoop
from gpuplane.loops.scheduler.recorder import Recorder
from gpuplane.loops.triggers.loop import TriggersLoop
from gpuplane.loops.webhooks import WebhookLoop
from gpuplane.provisioning.vaults import rewrap_vaults


@dataclass(frozen=True, slots=True)
class Parts:
    """What loops and API share in one process."""

    settings: Settings
    home: Home
    clock: Clock
    database: Database
    keys: SealingKeys
    backends: BackendRegistry
    runner: LoopRunner
    registry: CollectorRegistry
    feed: Feed
    followers: Seats
    """Of those who follow logs."""
    client: httpx2.AsyncClient
    leases: LeaseKeeper
    tracing: Tracing
    turns: DecisionProcess
    """Decides for the scheduler."""
    handlers: Handlers
    """Who does the steps of runs."""
    questions: DecisionProcess
    """Answers what people ask: a long forecast must not hold the scheduler up."""
    looks: LookTimes = field(default_factory=LookTimes)
    """When each cluster was last looked at."""


def owner_name() -> str:
    """Return the name under which this process holds leases."""
    return f"{socket.gethostname()}:{os.getpid()}"


def make_loops(parts: Parts, around: Callable[[], Surroundings]) -> list[LoopBody]:
    """Return every loop of the control plane, not started."""
    settings, database, clock = parts.settings, parts.database, parts.clock
    chance = random.Random()
    tools = step_tools_of(parts)
    register_steps(parts.handlers, tools)

    def jitter() -> float:
        return chance.uniform(-1, 1)

    def publish() -> None:
        parts.feed.publish()
        parts.runner.wake([TRIGGERS])

    def seal(text: str) -> bytes:
        return parts.keys.seal(text.encode(), OUTPUTS_CONTEXT)

    return [
        SchedulerLoop(
            database,
            clock,
            parts.leases,
            policy_of(settings),
            settings.scheduling.seed,
            parts.turns,
            settings.loops.scheduler_s,
            parts.backends,
            recorder_of(parts),
        ),
        DispatcherLoop(
            database,
            clock,
            parts.backends,
            around,
            jitter,
            parts.keys,
            parts.tracing,
            settings.loops.dispatcher_s,
        ),
        ObserverLoop(
            database,
            clock,
            parts.backends,
            seal,
            jitter,
            lambda: parts.runner.wake(["observer"]),
            settings.loops.observer_s,
            lambda: parts.runner.wake(["inventory"]),
        ),
        _kueue_loop(parts),
        *_cluster_loops(parts),
        RepartitionerLoop(database, clock, parts.backends, settings.loops.inventory_s),
        MonitorLoop(
            database,
            clock,
            parts.backends,
            targets_of(settings),
            settings.loops.monitor_s,
            uptimes_of(settings),
            settings.scheduling.no_show_s,
        ),
        _runs_loop(parts),
        _triggers_loop(parts, tools),
        LearnerLoop(database, clock, parts.leases, settings.loops.learner_s),
        RelayLoop(database, parts.leases, publish),
        WebhookLoop(
            database,
            clock,
            parts.leases,
            parts.keys,
            webhook_policy_of(settings),
            parts.client,
            chance.random,
        ),
        MetersLoop(database, clock, JobMeters(parts.registry)),
        PipelineMetersLoop(database, PipelineMeters(parts.registry)),
        _retention_loop(parts),
    ]


def _cluster_loops(parts: Parts) -> list[LoopBody]:
    """Return the loops of clusters, and let runs know the steps of their lives."""
    told = parts.settings
    tools = registered.make_tools(
        told.clusters,
        parts.backends,
        home=parts.home,
        database=parts.database,
        clock=parts.clock,
        sealing=parts.keys,
    )
    registered.register_steps(parts.handlers, tools)
    refresh = registered.make_refresh(parts.backends, tools)
    return [
        InventoryLoop(parts.database, parts.clock, parts.backends, told.loops.inventory_s, refresh),
        registered.make_loop(told.clusters, tools, parts.looks),
    ]


def _kueue_loop(parts: Parts) -> KueueLoop:
    return KueueLoop(
        parts.database,
        parts.clock,
        parts.backends,
        parts.leases,
        _boosts_of(parts.settings),
        lambda: parts.runner.wake(["kueue"]),
        worker_lost_s=parts.settings.clusters.worker_lost_s,
    )


def _runs_loop(parts: Parts) -> RunsLoop:
    return RunsLoop(
        parts.database,
        parts.clock,
        parts.handlers,
        RunMeters(parts.registry),
        worker_of(parts.settings),
        run_policy_of(parts),
    )


def _triggers_loop(parts: Parts, tools: StepTools) -> TriggersLoop:
    return TriggersLoop(
        parts.database,
        parts.clock,
        parts.leases,
        tools,
        run_policy_of(parts),
        parts.settings.pipelines.triggers_s,
    )


def _retention_loop(parts: Parts) -> RetentionLoop:
    return RetentionLoop(
        parts.database,
        parts.clock,
        parts.backends,
        Retention(**dataclasses.asdict(parts.settings.retention)),
        parts.home.workspaces,
        parts.settings.loops.retention_s,
    )


def make_dependencies(parts: Parts) -> AppDependencies:
    """Return what the API is given."""
    settings = parts.settings
    oidc = oidc_of(settings, parts.database, parts.clock, parts.client)
    return AppDependencies(
        database=parts.database,
        clock=parts.clock,
        authenticator=Authenticator(parts.database, parts.clock, oidc),
        routers=load_routers(),
        registry=parts.registry,
        limits=limits_of(settings),
        loop_states=parts.runner.states,
        tracing=parts.tracing,
        ports={
            "backends": parts.backends,
            "sealing": parts.keys,
            "submit_limits": submit_limits_of(settings),
            "planner": WorldPlanner(
                parts.database,
                parts.clock,
                policy_of(settings),
                settings.scheduling.seed,
                parts.questions,
            ),
            "run_policy": run_policy_of(parts),
            "pipeline_tools": step_tools_of(parts),
            "event_feed": parts.feed,
            "log_followers": parts.followers,
            "webhook_policy": webhook_policy_of(settings),
            "find_cluster": clusters.find_cluster,
            "look_times": parts.looks,
            "has_node": nodes.has_node,
            "device_use": DeviceUse(
                placements.load_held, settings.clusters.hami_utilization_threshold
            ),
            "find_holds": find_holds,
            "in_use": (
                find_jobs,
                secrets.find_use,
                pipelines.find_use,
                queues.find_use,
                usage.find_use,
            ),
            "carry_over": billing.carry_prices,
            "rewraps": (rewrap_outputs, clusters.rewrap_credentials),
            "reseals": (partial(rewrap_vaults, parts.home.path),),
            "count_queue_users": count_queue_users,
            "list_tenant_jobs": list_tenant_jobs,
            "count_offers": count_offers,
            "count_reservations": placements.count_standing,
            "workspaces": WorkspaceFolder(
                parts.home.workspaces, max_bytes=settings.http.workspace_bytes
            ),
        },
    )


def submit_limits_of(settings: Settings) -> SubmitLimits:
    """Return the limits of submits, and where charts of jobs may come from."""
    told, sources = settings.limits, words(settings.clusters.chart_sources)

    def has_chart(name: str, version: str) -> bool:
        return find_own(settings.clusters.charts, name, version) is not None

    has_helm = bool(settings.clusters.helm)
    return SubmitLimits(
        told.unfinished_jobs,
        told.array_size,
        sources,
        has_helm,
        has_chart,
        settings.clusters.chart_check_s,
    )


def step_tools_of(parts: Parts) -> StepTools:
    """Return what steps of pipelines work with."""
    told = parts.settings
    return make_step_tools(
        told.pipelines,
        submit_limits_of(told),
        database=parts.database,
        clock=parts.clock,
        client=parts.client,
        sealing=parts.keys,
    )


def run_policy_of(parts: Parts) -> RunPolicy:
    """Return what runs may take by the settings, with the handlers of this process."""
    told = parts.settings.runs
    rules = Rules(told.steps, told.edges, told.depth, told.outputs_bytes)
    policy = RunPolicy(rules, told.open_runs, told.output_bytes, told.event_bytes, told.kept_events)
    return policy_for(policy, parts.handlers)


def worker_of(settings: Settings) -> WorkerSettings:
    """Return how this process works on runs."""
    told = settings.runs
    return WorkerSettings(told.handlers, told.share, told.lease_s, told.poll_s)


def recorder_of(parts: Parts) -> Recorder | None:
    """Return what keeps the last decisions, None when none are to be kept."""
    kept = parts.settings.scheduling.recordings
    return Recorder(parts.home.decisions, kept) if kept > 0 else None


def targets_of(settings: Settings) -> WaitTargets:
    """Return the queue-wait targets that settings describe."""
    targets = settings.targets
    return WaitTargets(
        {
            Priority.CRITICAL: targets.critical_wait_s * 1000,
            Priority.HIGH: targets.high_wait_s * 1000,
            Priority.NORMAL: targets.normal_wait_s * 1000,
        }
    )


def uptimes_of(settings: Settings) -> UptimeTargets:
    """Return the uptime targets that settings describe."""
    targets = settings.targets
    return UptimeTargets(
        {
            Priority.CRITICAL: round(targets.critical_uptime * 10_000),
            Priority.HIGH: round(targets.high_uptime * 10_000),
            Priority.NORMAL: round(targets.normal_uptime * 10_000),
        },
        window_ms=round(targets.uptime_window_days * 86_400_000),
    )


def policy_of(settings: Settings) -> Policy:
    """Return the scheduling policy that settings describe."""
    return Policy(
        placement=PlacementPolicy(settings.scheduling.placement),
        boosts=_boosts_of(settings),
        preemption=PreemptionLimits(
            enabled=settings.scheduling.preemption, by_loss=settings.scheduling.victims_by_loss
        ),
        hint_points=settings.scheduling.hint_points,
        cuts_gpus=settings.scheduling.repartition,
    )


def _boosts_of(settings: Settings) -> Boosts:
    """Return boosts that aim at the targets of the settings; other classes keep their own."""
    stated = {key: ms // 1000 for key, ms in targets_of(settings).by_priority.items()}
    return Boosts(wait_target_s={**Boosts().wait_target_s, **stated})


def webhook_policy_of(settings: Settings) -> WebhookPolicy:
    """Return what webhooks may do by the settings."""
    hosts = tuple(filter(None, (h.strip() for h in settings.webhooks.allowed_hosts.split(","))))
    return WebhookPolicy(
        allowed_hosts=hosts,
        tries=settings.webhooks.max_tries,
        disable_after=settings.webhooks.disable_after,
        per_tenant=settings.webhooks.per_tenant,
        timeout_s=settings.webhooks.timeout_s,
    )


def oidc_of(
    settings: Settings, database: Database, clock: Clock, client: httpx2.AsyncClient
) -> OidcLogins | None:
    """Return logins by the issuers that settings name, or None without any.

    Raises:
        SettingsError: If the issuers are not the JSON they should be; says what is wrong.
    """
    issuers = issuers_of(settings)
    return OidcLogins(issuers, database, clock, client) if issuers else None


def issuers_of(settings: Settings) -> tuple[OidcIssuer, ...]:
    """Return the issuers that settings name, none where they name none.

    Raises:
        SettingsError: If they are not the JSON they should be; says what is wrong.
    """
    if not settings.oidc.issuers:
        return ()
    try:
        return msgspec.json.decode(settings.oidc.issuers, type=tuple[OidcIssuer, ...])
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise SettingsError(
            f"GPUPLANE_OIDC_ISSUERS is no list of issuers: {error}. Write it as JSON like "
            '[{"issuer": "https://login.example/realm", "audience": "gpuplane"}]; '
            "docs/reference/oidc.md tells every field."
        ) from error


def limits_of(settings: Settings) -> Limits:
    """Return the API's limits that settings describe."""
    http = settings.http
    return Limits(
        body_bytes=http.body_bytes,
        json_depth=http.json_depth,
        submits_per_s=http.submits_per_s,
        submit_burst=http.submit_burst,
        streams=http.streams,
        per_minute={
            REGISTRATIONS: settings.clusters.registrations_per_minute,
            DEPLOYMENTS: settings.clusters.deployments_per_minute,
            NODE_READS: settings.clusters.node_reads_per_minute,
        },
    )
