"""The tasks that serve a whole cluster outlive whatever one object of it raises."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuplane.backends.interface import AttemptRef
from gpuplane.backends.kubernetes.archive import LogArchive
from gpuplane.backends.kubernetes.creating import PodTroubles
from gpuplane.backends.kubernetes.failures import MAX_TOLD, Failures
from gpuplane.backends.kubernetes.fencing import RecordStore
from gpuplane.backends.kubernetes.records import RELEASE_KIND, Record
from gpuplane.backends.kubernetes.reporting import Reporter
from gpuplane.backends.kubernetes.settings import KubernetesSettings
from gpuplane.backends.kubernetes.settling import Settler
from gpuplane.backends.kubernetes.tailing import LogTails
from gpuplane.backends.kubernetes.views import ClusterView
from gpuplane.kube.clients import KubeClient
from gpuplane.kube.credentials import Connection
from tests.clocks import FakeClock
from tests.unit.backends.kubernetes.builders import (
    ATTEMPT_ID,
    a_main,
    a_pod,
    a_record,
    another_attempt,
    broken,
)

LONG_S = 60.0


@asynccontextmanager
async def begun(task: Awaitable[None]) -> AsyncIterator[asyncio.Future[None]]:
    """Begin a task that runs for ever, and end it."""
    running = asyncio.ensure_future(task)
    try:
        yield running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def a_client() -> KubeClient:
    """Return the client of a cluster that cannot be reached: here no socket opens."""
    return KubeClient(Connection(server="https://cluster.invalid"))


def a_view_with_a_broken_pod() -> ClusterView:
    """Return a view of an attempt at which no look succeeds, and nothing else."""
    view = ClusterView()
    view.take_record(a_record(), 1)
    view.take_main(a_main())
    view.take_pod(broken(a_pod()))
    return view


def a_settler(
    view: ClusterView, folder: Path, uninstall: Callable[[Record], Awaitable[None]]
) -> Settler:
    """Return the settler of a cluster on which Helm alone does anything."""

    async def forget(_: AttemptRef) -> None: ...
    async def withdraw(_: Record) -> None: ...

    client, clock = a_client(), FakeClock()
    tails = LogTails(client, LogArchive(folder, 1_000), 1, lambda: None)
    return Settler(
        client,
        view,
        RecordStore(client, view, "c", "gpuplane"),
        tails,
        clock,
        KubernetesSettings(),
        "c",
        lambda: False,
        forget,
        uninstall,
        withdraw,
    )


async def test_the_settler_goes_on_with_other_attempts_when_one_raises(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    view = a_view_with_a_broken_pod()
    other, record, _ = another_attempt()
    record = msgspec.structs.replace(record, kind=RELEASE_KIND, evict_reason="Cancelled")
    release = a_main(RELEASE_KIND)
    release.metadata.name, release.metadata.labels = "other", {ATTEMPT_ID: str(other)}
    view.take_record(record, 1)
    view.take_main(release)
    uninstalled: asyncio.Queue[Record] = asyncio.Queue()
    settler = a_settler(view, tmp_path, uninstalled.put)
    async with begun(settler.run()), asyncio.timeout(LONG_S):
        for _ in range(3):
            view.take_pod(broken(a_pod()))
            settler.wake()
            assert (await uninstalled.get()).id == other
    await settler.stop()
    told = [each for each in caplog.records if each.levelname == "ERROR"]
    assert len([each for each in told if str(a_record().id) in each.getMessage()]) == 1


async def test_the_settler_settles_others_after_a_release_that_cannot_be_taken_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    view = ClusterView()
    other, record, _ = another_attempt()
    first, second = asyncio.Event(), asyncio.Event()
    for each, name in ((a_record(), "j"), (record, "other")):
        release = a_main(RELEASE_KIND)
        release.metadata.name, release.metadata.labels = name, {ATTEMPT_ID: str(each.id)}
        view.take_record(
            msgspec.structs.replace(each, kind=RELEASE_KIND, evict_reason="Cancelled"), 1
        )
        view.take_main(release)

    async def uninstall(record: Record) -> None:
        if record.id == other:
            second.set()
            return
        first.set()
        raise RuntimeError("Helm wrote what nobody foresaw")

    settler = a_settler(view, tmp_path, uninstall)
    async with begun(settler.run()) as task, asyncio.timeout(LONG_S):
        settler.wake()
        await first.wait()
        await second.wait()
        assert not task.done()
    await settler.stop()
    told = [each.getMessage() for each in caplog.records]
    assert f"the settling of attempt {a_record().id} failed; all else goes on" in told


async def test_the_reporter_and_who_asks_for_missing_pods_go_on_when_a_look_raises() -> None:
    clock, view = FakeClock(), a_view_with_a_broken_pod()
    main = a_main()
    other, record, _ = another_attempt()
    main.metadata.name, main.metadata.labels = "other", {ATTEMPT_ID: str(other)}
    view.take_record(record, 1)
    view.take_main(msgspec.structs.replace(main, spec=None))
    # Beside an attempt that raises, a limit that makes each look raise as a whole.
    none: Any = None
    settings = replace(KubernetesSettings(), report_reads_per_s=none)
    reporter = Reporter(a_client(), view, clock, settings, lambda: None)
    troubles = PodTroubles(a_client(), view, clock, lambda: None)
    async with begun(reporter.run()) as reporting, begun(troubles.run()) as asking:
        await clock.advance(30)
        assert not reporting.done()
        assert not asking.done()


def test_what_fails_is_told_once_until_it_went_well_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures = Failures()

    def attempt(of: int, fails: bool) -> None:
        with failures.kept("a look at", of):
            if fails:
                raise ValueError(of)

    for of, fails in [(1, True), (1, True), (2, True), (1, False), (1, True)]:
        attempt(of, fails)
    assert [each.getMessage() for each in caplog.records] == [
        f"a look at {of} failed; all else goes on" for of in (1, 2, 1)
    ]
    assert all(each.exc_info for each in caplog.records)


def test_what_was_told_is_forgotten_at_a_limit_and_what_a_caller_takes_passes() -> None:
    failures = Failures()
    for of in range(MAX_TOLD + 1):
        with failures.kept("a look at", of):
            raise ValueError(of)
    with pytest.raises(KeyError), failures.kept("a look at", 0, (KeyError,)):
        raise KeyError
