"""The whole rig: one cluster, and as many workers as are asked for, in one folder.

A rig started here ends with its starter; `rig.keepers` keeps one running for others. What a killed
rig left behind is removed when the next one starts in the same place.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from rig.api import Object
from rig.binaries import JOBSET, KEDA, Binaries, Build, Source, find_binaries
from rig.clusters import LEASE_S, Cluster
from rig.containers import MARK
from rig.nodes import MANAGER, build_nodes
from rig.processes import RigFailed, is_alive
from rig.volumes import STORAGE_CLASS

FOLDER_PREFIX = "gpuplane-rig-"  # then the starter's process id
STATE = "rig.json"
DEFAULT_NODES = (("h100", 2), ("a100", 1), ("a100-mig", 1), ("v100", 1), ("l4", 1), ("gaudi", 1))
DEFAULT_PROCESS_NODES = (("h100", 1), ("cpu", 1))


@dataclass(frozen=True)
class RigPlan:
    """What a rig is made of.

    Attributes:
        workers: Clusters beside the first, for MultiKueue and for cluster faults.
        nodes: Fake nodes of each cluster: kind of machine and count.
        process_nodes: Nodes of each cluster whose pods are processes of this machine.
        kueue: Whether each cluster has a Kueue.
        jobset: Whether each cluster has a JobSet controller.
        keda: Whether each cluster knows KEDA's kinds; no operator follows them.
        machines_of: Whose machines the first cluster's nodes are, where several rigs stand side by
            side: GPUs of equal ids would be one GPU.
        lease_s: How long the lease of a fake node holds. With a thousand of them, renewals are
            100 writes a second, most of what a small machine does.
    """

    workers: int = 0
    nodes: Sequence[tuple[str, int]] = DEFAULT_NODES
    process_nodes: Sequence[tuple[str, int]] = DEFAULT_PROCESS_NODES
    kueue: bool = True
    jobset: bool = False
    keda: bool = False
    machines_of: str = MANAGER
    lease_s: int = LEASE_S

    @property
    def more(self) -> tuple[Build | Source, ...]:
        """Return what it needs beside the programs of every rig."""
        return (*((JOBSET,) if self.jobset else ()), *((KEDA,) if self.keda else ()))


@dataclass
class Rig:
    """A running rig; `clusters` has `manager` first, then `worker-1` …."""

    folder: Path
    plan: RigPlan
    clusters: dict[str, Cluster] = field(default_factory=dict)

    @property
    def manager(self) -> Cluster:
        return self.clusters[MANAGER]

    def start(self, binaries: Binaries, announce: Callable[[str], None]) -> None:
        """Start everything and wait until all nodes are there.

        Raises:
            RigFailed: If a part does not come up; what was started is stopped.
        """
        names = [MANAGER, *(f"worker-{number + 1}" for number in range(self.plan.workers))]
        try:
            for name in names:
                cluster = Cluster(
                    name,
                    self.folder / name,
                    binaries,
                    kueue=self.plan.kueue,
                    jobset=self.plan.jobset,
                    keda=self.plan.keda,
                    lease_s=self.plan.lease_s,
                )
                self.clusters[name] = cluster
                cluster.start(announce)
                self._add_nodes(name, cluster)
                announce(f"{name}: nodes")
        except BaseException:
            self.stop()
            raise
        self._write_state()

    def stop(self) -> None:
        """Stop everything, workers first, and end what pods left running; safe to call twice."""
        for cluster in reversed(self.clusters.values()):
            cluster.stop()
        end_left_processes(self.folder)
        (self.folder / STATE).unlink(missing_ok=True)

    def _add_nodes(self, name: str, cluster: Cluster) -> None:
        owner = self.plan.machines_of if name == MANAGER else name
        nodes = build_nodes(self.plan.nodes, processes=False, cluster=owner)
        nodes += build_nodes(self.plan.process_nodes, processes=True, cluster=owner)
        api = cluster.api()
        try:
            api.create(STORAGE_CLASS)
            for node in nodes:
                api.create(node)
        finally:
            api.close()

    def _write_state(self) -> None:
        kubeconfigs = {name: str(cluster.kubeconfig) for name, cluster in self.clusters.items()}
        parts = {
            name: {part.name: part.process.pid for part in cluster.parts.values() if part.process}
            for name, cluster in self.clusters.items()
        }
        state: Object = {"pid": os.getpid(), "kubeconfigs": kubeconfigs, "parts": parts}
        fresh = self.folder / f"{STATE}.new"
        fresh.write_text(json.dumps(state))
        fresh.replace(self.folder / STATE)
        for number, (name, path) in enumerate(kubeconfigs.items()):
            link = self.folder / ("kubeconfig" if not number else f"kubeconfig-{name}")
            link.unlink(missing_ok=True)
            link.symlink_to(path)


def find_rig(folder: Path) -> Object | None:
    """Return what a running rig wrote about itself (`pid`, `kubeconfigs`, `parts`), or None."""
    try:
        state: Object = json.loads((folder / STATE).read_text())
    except (OSError, ValueError):
        return None
    return state if is_alive(state["pid"]) else None


def list_dead_parts(state: Object) -> list[str]:
    """Return the parts of a running rig that ended, as `cluster/part`."""
    return [
        f"{cluster}/{part}"
        for cluster, parts in state["parts"].items()
        for part, pid in parts.items()
        if not is_alive(pid)
    ]


def clean_folder(folder: Path, keep: Collection[str] = ()) -> None:
    """Remove what a rig left in a folder of its own, but the files named by `keep`.

    Raises:
        RigFailed: If a rig runs there, or the folder holds something else.
    """
    if find_rig(folder) is not None:
        raise RigFailed(f"a rig runs in {folder} already: `rig status`, `rig down`")
    if not folder.exists():
        return
    ours = {STATE, f"{STATE}.new", MANAGER, "keeper.log", "keeper.pid", "lock"}
    for path in folder.iterdir():
        known = path.name in ours or path.name.startswith(("worker-", "kubeconfig"))
        if not known:
            raise RigFailed(
                f"{folder} has {path.name}, which is no part of a rig: another --folder"
            )
    end_left_processes(folder)
    for path in folder.iterdir():
        if path.name in keep:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def end_left_processes(folder: Path) -> None:
    """End processes of pods of a rig's folder that outlived it, found by the mark they carry."""
    mark = f"{MARK}={folder.resolve()}/".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):
            if any(item.startswith(mark) for item in (entry / "environ").read_bytes().split(b"\0")):
                os.kill(int(entry.name), signal.SIGKILL)


@contextmanager
def running_rig(
    plan: RigPlan | None = None, announce: Callable[[str], None] = lambda _: None
) -> Iterator[Rig]:
    """Run a rig of one's own for the length of a `with` block, for instance to break parts of it.

    Raises:
        BinariesUnavailable: If its programs are not on this machine.
        RigFailed: If it does not come up.
    """
    plan = plan or RigPlan()
    binaries = find_binaries(plan.more)
    remove_abandoned_folders()
    folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{os.getpid()}-"))
    rig = Rig(folder, plan)
    try:
        rig.start(binaries, announce)
        yield rig
    finally:
        rig.stop()
        shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned_folders() -> None:
    """Remove the data of starters that were killed before they could."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        starter = folder.name.removeprefix(FOLDER_PREFIX).partition("-")[0]
        if starter.isdigit() and not is_alive(int(starter)) and find_rig(folder) is None:
            end_left_processes(folder)
            shutil.rmtree(folder, ignore_errors=True)
