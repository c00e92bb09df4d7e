"""The rig for tests: one for the whole run, shared by all workers, reused where one runs already.

`GPUPLANE_RIG` names the folder of a rig that somebody keeps (`python -m rig up --folder …`); else
the first test that asks starts one, which ends with the run. Tests that break parts of a rig start
one of their own with `rig.rigs.running_rig`. Where its programs cannot be had, the tests are left
out with the reason.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuplane.kube.connections import Connection, read_kubeconfig
from rig.api import Access, Api
from rig.binaries import Binaries, BinariesUnavailable, find_binaries
from rig.nodes import MANAGER, build_node
from rig.rigs import FOLDER_PREFIX, RigPlan, find_rig, running_rig
from tests.waiting import wait_until

# Read once: every test gets an environment without the developer's settings.
KEPT = os.environ.get("GPUPLANE_RIG")


@dataclass(frozen=True)
class RunningCluster:
    """A cluster of a rig that another process keeps.

    Attributes:
        kubeconfig: Its administrator's kubeconfig.
        binaries: The rig's programs, for instance `helm` and `kubectl`.
        name: Whose machines its nodes are.
    """

    kubeconfig: Path
    binaries: Binaries
    name: str = MANAGER

    def connection(self) -> Connection:
        """Return how the product reaches the cluster, as an administrator."""
        return read_kubeconfig(self.kubeconfig.read_text())

    def api(self) -> Api:
        """Return the rig's own small client; the caller closes it."""
        document = yaml.safe_load(self.kubeconfig.read_text())
        url = document["clusters"][0]["cluster"]["server"]
        token = document["users"][0]["user"]["token"]
        authority = self.kubeconfig.resolve().parent / "certificates" / "ca.crt"
        return Api(Access(url, authority, token))

    def namespace(self, labels: dict[str, str] | None = None) -> str:
        """Make a namespace of a name of its own that pods can be created in at once."""
        name = f"test-{uuid.uuid4().hex[:10]}"
        meta = {"name": name, "labels": labels or {}}
        api = self.api()
        try:
            api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
            account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
            wait_until(lambda: api.find(account) is not None, f"{name} has its ServiceAccount")
        finally:
            api.close()
        return name

    def add_nodes(
        self, kind: str, count: int, prefix: str, *, processes: bool = False, **labels: str
    ) -> list[str]:
        """Add nodes of a kind of machine (`rig.nodes.MACHINES`), wait until Ready; their names.

        Labels are written with `_` for `-`, without a domain: they select the test's own nodes.
        """
        names = [f"{prefix}-{number}" for number in range(1, count + 1)]
        api = self.api()
        try:
            for name in names:
                node = build_node(kind, name, processes=processes, cluster=self.name)
                node["metadata"]["labels"] |= {k.replace("_", "-"): v for k, v in labels.items()}
                api.create(node)
            for name in names:
                path = f"/api/v1/nodes/{name}"
                wait_until(lambda path=path: is_ready(api.find(path)), f"{name} is Ready")
        finally:
            api.close()
        return names

    def remove_nodes(self, names: list[str]) -> None:
        """Take nodes away again, so that nobody else's pods are put on them."""
        api = self.api()
        try:
            for name in names:
                api.delete(f"/api/v1/nodes/{name}")
        finally:
            api.close()


def is_ready(node: dict[str, Any] | None) -> bool:
    """Return whether a Node object says that it is Ready."""
    conditions = ((node or {}).get("status") or {}).get("conditions") or []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


@pytest.fixture(scope="session")
def rig_binaries() -> Binaries:
    """The rig's programs, for tests that start a rig of their own."""
    try:
        return find_binaries()
    except BinariesUnavailable as error:
        pytest.skip(str(error))


NODES = ("--process-nodes", "h100=2,cpu=2")
"""A gang of two ranks is placed on two nodes whose pods really run."""


@pytest.fixture(scope="session")
def rig(rig_binaries: Binaries) -> RunningCluster:
    """A running cluster with KWOK, process nodes and Kueue, shared by all tests of the run."""
    return _running(MANAGER, rig_binaries)


@pytest.fixture(scope="session")
def second_rig(rig_binaries: Binaries) -> RunningCluster:
    """Another such cluster, for instance MultiKueue's worker."""
    return _running("worker-1", rig_binaries)


@contextmanager
def rig_of_ones_own(binaries: Binaries, workers: int = 0) -> Iterator[list[RunningCluster]]:
    """Run clusters like the shared ones for one module: the manager, then its workers.

    For tests of what takes all that is on a cluster for its own, as a database does that is made
    anew from it: beside others it would take over their work.
    """
    plan = RigPlan(workers=workers, process_nodes=[("h100", 2), ("cpu", 2)])
    with running_rig(plan) as own:
        yield [
            RunningCluster(each.kubeconfig, binaries, name) for name, each in own.clusters.items()
        ]


@pytest.fixture
def namespace(rig: RunningCluster) -> Iterator[str]:
    """A namespace of the test's own, deleted with everything in it afterwards."""
    name = rig.namespace()
    yield name
    api = rig.api()
    api.delete(f"/api/v1/namespaces/{name}")
    api.close()


@pytest.fixture
def add_nodes(rig: RunningCluster) -> Iterator[Callable[..., list[str]]]:
    """`rig.add_nodes`, and they are gone after the test."""
    added: list[str] = []

    def add(*arguments: Any, **more: Any) -> list[str]:
        names = rig.add_nodes(*arguments, **more)
        added.extend(names)
        return names

    yield add
    rig.remove_nodes(added)


def _running(cluster: str, binaries: Binaries) -> RunningCluster:
    if KEPT:
        state = find_rig(Path(KEPT))
        if state is None or cluster not in state["kubeconfigs"]:
            pytest.fail(f"GPUPLANE_RIG: no {cluster} runs in {KEPT}")
        return RunningCluster(Path(state["kubeconfigs"][cluster]), binaries, cluster)
    # The process that ends last: the run's controller, or this process where there is none.
    run = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    folder = Path(tempfile.gettempdir(), f"{FOLDER_PREFIX}{run}-{cluster}")
    asked = ["--folder", folder, "--machines-of", cluster, "--until-gone", str(run), *NODES]
    done = subprocess.run(
        [sys.executable, "-m", "rig", "up", *asked],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    state = find_rig(folder)
    if state is None:
        pytest.fail(f"the rig does not start: {done.stderr}")
    return RunningCluster(Path(state["kubeconfigs"][MANAGER]), binaries, cluster)
