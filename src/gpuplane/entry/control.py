"""The control plane of one process: built from settings, started, stopped."""

import dataclasses
import hashlib
from dataclasses import dataclass
from functools import partial

from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from gpuplane import __version__
from gpuplane.api.app import create_app
from gpuplane.backends.kubernetes.chartplaces import ChartTools
from gpuplane.backends.local.settings import LocalSettings
from gpuplane.core.ids import ClusterId
from gpuplane.db.database import Database
from gpuplane.db.leases import LeaseKeeper
from gpuplane.db.schema import upgrade_schema
from gpuplane.domains.clusters.service import KUBERNETES
from gpuplane.domains.jobs.service import Surroundings
from gpuplane.domains.runs.service import Handlers
from gpuplane.entry.assembling import Parts, make_dependencies, make_loops, owner_name
from gpuplane.entry.backends import BackendRegistry
from gpuplane.entry.firststart import ensure_first_start
from gpuplane.entry.home import Home
from gpuplane.entry.pipelines import words
from gpuplane.entry.refusals import CannotStart, database_refusals
from gpuplane.entry.settings import Settings
from gpuplane.kit.clock import Clock, SystemClock
from gpuplane.kit.feeds import Feed, Seats
from gpuplane.kit.loops import LoopBody, LoopRunner
from gpuplane.kit.outbound import make_client
from gpuplane.kit.sealing import SealingKeys
from gpuplane.kit.tracing import open_tracing
from gpuplane.loops.clusters.loop import ClustersLoop
from gpuplane.loops.deciding.process import DecisionBounds, DecisionProcess


@dataclass(slots=True)
class ControlPlane:
    """Everything of one process, ready to start and stop."""

    parts: Parts
    token: str
    app: FastAPI
    loops: dict[str, LoopBody]
    address: str = ""

    @property
    def database(self) -> Database:
        """Return the database of this process."""
        return self.parts.database

    @property
    def backends(self) -> BackendRegistry:
        """Return the backends of this process."""
        return self.parts.backends

    @property
    def runner(self) -> LoopRunner:
        """Return what runs the loops of this process."""
        return self.parts.runner

    async def start(self) -> None:
        """Make what a first start needs, look at the clusters once, then start the loops."""
        now = self.parts.clock.now_ms()
        digest = hashlib.sha256(self.token.encode()).hexdigest()
        clusters = await self.database.write(
            "entry.first_start",
            lambda s: ensure_first_start(s, now, digest, self.token[:12]),
        )
        for cluster in clusters:
            if cluster.kind != KUBERNETES:
                self.backends.add(cluster)
        self.database.on_commit(self.runner.wake)
        await self.loops["inventory"].run_once()
        self.runner.start()

    def end_streams(self) -> None:
        """Send away who follows events and logs: they end by nothing else, and connect again."""
        self.parts.feed.close()
        self.parts.followers.close()

    async def stop(self) -> None:
        """Stop the loops and let go of everything; what runs goes on."""
        self.end_streams()
        await self.runner.stop()
        self.parts.turns.close()
        self.parts.questions.close()
        await self.parts.client.aclose()
        await self.parts.leases.release_all()
        await self.backends.stop()
        self.backends.close()
        self.parts.tracing.close()
        self.database.close()


def _look_again(runner: LoopRunner, looker: ClustersLoop, cluster_id: ClusterId) -> None:
    """Have a cluster looked at now that was heard of again: its back-off has served its end."""
    looker.note_return(cluster_id)
    runner.wake([looker.name])


def open_database(settings: Settings) -> Database:
    """Return the database that settings name, at this version's schema.

    Raises:
        CannotStart: If it cannot be opened or is newer than this version.
    """
    with database_refusals(settings):
        database = Database(settings.sql_url)
        try:
            upgrade_schema(database.engine)
        except RuntimeError as error:
            database.close()
            raise CannotStart(str(error), "Or name another database.") from error
        except BaseException:
            database.close()
            raise
    return database


def build(settings: Settings, home: Home, clock: Clock | None = None) -> ControlPlane:
    """Return the control plane that settings describe, not started yet."""
    clock = clock or SystemClock()
    database = open_database(settings)
    bounds = DecisionBounds(**dataclasses.asdict(settings.decisions))
    parts = Parts(
        settings=settings,
        home=home,
        clock=clock,
        database=database,
        keys=SealingKeys(home.keys),
        backends=BackendRegistry(
            home.path,
            clock,
            settings.scheduling.seed,
            LocalSettings(**dataclasses.asdict(settings.local)),
            ChartTools(
                settings.clusters.helm,
                settings.clusters.charts,
                words(settings.clusters.chart_sources),
                memory_mib=settings.clusters.chart_memory_mib,
            ),
        ),
        runner=LoopRunner(clock),
        registry=CollectorRegistry(),
        feed=Feed(settings.http.streams),
        followers=Seats(settings.http.log_followers),
        client=make_client(),
        leases=LeaseKeeper(database, clock, owner_name()),
        tracing=open_tracing(settings.telemetry.otlp_endpoint, __version__),
        turns=DecisionProcess(bounds),
        handlers=Handlers(),
        questions=DecisionProcess(bounds),
    )
    control: dict[str, ControlPlane] = {}

    def around() -> Surroundings:
        return Surroundings(control["it"].address, str(home.workspaces), __version__)

    loops = make_loops(parts, around)
    for body in loops:
        parts.runner.add(body)
        if isinstance(body, ClustersLoop):
            parts.backends.on_return = partial(_look_again, parts.runner, body)
    control["it"] = ControlPlane(
        parts=parts,
        token=home.ensure_token(),
        app=create_app(make_dependencies(parts)),
        loops={body.name: body for body in loops},
    )
    return control["it"]
