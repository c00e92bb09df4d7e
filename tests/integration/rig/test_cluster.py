"""A rig from start to end: nodes, a job that Kueue admits, its log, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rig.api import Api
from rig.processes import is_alive
from rig.rigs import RigPlan, find_rig, running_rig
from tests.kubernetes.rigged import RunningCluster, is_ready
from tests.waiting import wait_until

ROOT = Path(__file__).parents[3]
GPU = "nvidia.com/gpu"


@dataclass(frozen=True)
class Pods:
    """A namespace of the test's own, and what these tests ask of its pods."""

    api: Api
    namespace: str

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def create(self, pod: dict[str, Any]) -> None:
        self.api.create(pod | {"metadata": pod["metadata"] | {"namespace": self.namespace}})

    def annotate(self, name: str, key: str, value: str) -> None:
        meta = {"name": name, "namespace": self.namespace, "annotations": {key: value}}
        self.api.apply({"apiVersion": "v1", "kind": "Pod", "metadata": meta})

    def status_of(self, name: str) -> dict[str, Any]:
        pod = self.api.find(f"{self.path}/{name}")
        return {} if pod is None else pod["status"]

    def wait_for_phase(self, name: str, phase: str) -> dict[str, Any]:
        wait_until(lambda: self.status_of(name).get("phase") == phase, f"{name} is {phase}")
        return self.status_of(name)

    def log_of(self, name: str, **options: str) -> str:
        # Not through Api: a log is text, and only these tests read one.
        with self.api.access.client() as client:
            return client.get(f"{self.path}/{name}/log", params=options).text


@pytest.fixture
def pods(rig: RunningCluster, namespace: str) -> Iterator[Pods]:
    api = rig.api()
    yield Pods(api, namespace)
    api.close()


def a_pod(name: str, script: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "busybox", "command": ["sh", "-c", script]}
    container |= spec.pop("container", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "nodeSelector": {"rig.gpuplane.io/kind": "process"},
            "containers": [container],
            **spec,
        },
    }


@pytest.mark.parametrize("name", ["h100-1", "gaudi-1", "process-h100-1"])
def test_nodes_of_both_kinds_are_ready(pods: Pods, name: str) -> None:
    path = f"/api/v1/nodes/{name}"
    wait_until(lambda: is_ready(pods.api.find(path)), f"{name} is Ready")
    lease = pods.api.find(f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{name}")
    assert lease is not None
    assert lease["spec"]["leaseDurationSeconds"] == 40


@pytest.mark.parametrize("processes", [False, True])
def test_a_node_turns_not_ready_on_demand(
    rig: RunningCluster, pods: Pods, add_nodes: Callable[..., list[str]], processes: bool
) -> None:
    [name] = add_nodes("cpu", 1, f"{pods.namespace}-node", processes=processes)
    path = f"/api/v1/nodes/{name}"
    assert is_ready(pods.api.find(path))
    meta = {"name": name, "annotations": {"rig.gpuplane.io/not-ready": "true"}}
    pods.api.apply({"apiVersion": "v1", "kind": "Node", "metadata": meta})
    wait_until(lambda: not is_ready(pods.api.find(path)), f"{name} is NotReady")


@pytest.fixture
def queue(pods: Pods) -> Iterator[str]:
    """A LocalQueue of the test's namespace, with a ClusterQueue and a flavor of the same name."""
    name, kueue = pods.namespace, {"apiVersion": "kueue.x-k8s.io/v1beta2"}
    resources = [{"name": GPU, "nominalQuota": 4}]
    groups = [{"coveredResources": [GPU], "flavors": [{"name": name, "resources": resources}]}]
    specs = {
        "ResourceFlavor": {},
        "ClusterQueue": {"namespaceSelector": {}, "resourceGroups": groups},
        "LocalQueue": {"clusterQueue": name},
    }
    for kind, spec in specs.items():
        meta = {"name": name, "namespace": name} if kind == "LocalQueue" else {"name": name}
        pods.api.apply(kueue | {"kind": kind, "metadata": meta, "spec": spec})
    yield name
    for plural in ("clusterqueues", "resourceflavors"):
        pods.api.delete(f"/apis/kueue.x-k8s.io/v1beta2/{plural}/{name}")


def test_a_job_admitted_by_kueue_runs_on_a_process_node_and_its_log_is_read_back(
    pods: Pods, queue: str
) -> None:
    container = {"resources": {"limits": {GPU: 2}}}
    spec = a_pod("x", "echo ran on $NODE", container=container)["spec"]
    node = {"fieldRef": {"fieldPath": "spec.nodeName"}}
    spec["containers"][0]["env"] = [{"name": "NODE", "valueFrom": node}]
    labels = {"kueue.x-k8s.io/queue-name": queue}
    meta = {"name": "admitted", "namespace": pods.namespace, "labels": labels}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta}
    pods.api.create(job | {"spec": {"suspend": True, "template": {"spec": spec}}})

    path = f"/apis/batch/v1/namespaces/{pods.namespace}/jobs/admitted"
    wait_until(lambda: (pods.api.find(path) or {})["status"].get("succeeded") == 1, "it ended")

    [pod] = (pods.api.find(pods.path) or {"items": []})["items"]
    assert pod["spec"]["nodeName"].startswith("process-")
    assert pods.log_of(pod["metadata"]["name"]) == f"ran on {pod['spec']['nodeName']}\n"


def test_a_failing_container_says_its_exit_code_and_both_its_streams(pods: Pods) -> None:
    pods.create(a_pod("fails", "echo out; echo err >&2; exit 3"))
    status = pods.wait_for_phase("fails", "Failed")
    ended = status["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (3, "Error")
    assert sorted(pods.log_of("fails").split()) == ["err", "out"]


@pytest.mark.parametrize(
    ("script", "policy", "message"),
    [
        ("printf done > /dev/termination-log", "File", "done"),
        ("echo first; echo why; exit 1", "FallbackToLogsOnError", "first\nwhy"),
        ("echo said; exit 1", "File", None),
    ],
)
def test_what_a_container_leaves_as_its_termination_message_is_in_its_status(
    pods: Pods, script: str, policy: str, message: str | None
) -> None:
    pods.create(a_pod("leaves", script, container={"terminationMessagePolicy": policy}))
    status = pods.wait_for_phase("leaves", "Failed" if "exit 1" in script else "Succeeded")
    assert status["containerStatuses"][0]["state"]["terminated"].get("message") == message


def test_volumes_are_folders_that_containers_of_a_pod_share(pods: Pods) -> None:
    mount = [{"name": "shared", "mountPath": "/shared"}]
    first = {"name": "first", "image": "busybox", "volumeMounts": mount}
    first["command"] = ["sh", "-c", "echo prepared > /shared/file"]
    pod = a_pod(
        "shares",
        "cat /shared/file",
        container={"volumeMounts": mount},
        volumes=[{"name": "shared", "emptyDir": {}}],
        initContainers=[first],
    )
    pods.create(pod)
    pods.wait_for_phase("shares", "Succeeded")
    assert pods.log_of("shares", container="main") == "prepared\n"


def test_a_claim_of_the_default_class_keeps_what_a_pod_wrote_for_the_next(pods: Pods) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    meta = {"name": "kept", "namespace": pods.namespace}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta}
    pods.api.create(claim | {"spec": spec})
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "kept"}}
    mount = {"volumeMounts": [{"name": "v", "mountPath": "/kept"}]}
    for name, script in (("writes", "echo safe > /kept/file"), ("reads", "cat /kept/file")):
        pods.create(a_pod(name, script, container=mount, volumes=[volume]))
        pods.wait_for_phase(name, "Succeeded")
    assert pods.log_of("reads") == "safe\n"


def test_an_image_that_does_not_exist_backs_off(pods: Pods) -> None:
    pods.create(a_pod("no-image", "true", container={"image": "does-not-exist/model:1"}))

    def waits() -> str:
        statuses = pods.status_of("no-image").get("containerStatuses") or [{"state": {}}]
        return statuses[0]["state"].get("waiting", {}).get("reason", "")

    wait_until(lambda: waits() == "ImagePullBackOff", "the image backs off")
    assert pods.status_of("no-image")["phase"] == "Pending"


def test_a_container_over_its_memory_limit_is_oom_killed(pods: Pods) -> None:
    script = f"exec {sys.executable} -c 'import time; x = b\"x\" * 2**26; time.sleep(60)'"
    limit = {"resources": {"limits": {"memory": "32Mi"}}}
    pods.create(a_pod("greedy", script, container=limit))
    status = pods.wait_for_phase("greedy", "Failed")
    ended = status["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")


@pytest.mark.parametrize(
    ("annotation", "value", "reason"),
    [
        ("rig.gpuplane.io/evict", "The node was low on resource: memory.", "Evicted"),
        ("rig.gpuplane.io/oom-kill", "main", "OOMKilled"),
    ],
)
def test_trouble_on_demand_ends_a_pod_with_its_reason(
    pods: Pods, annotation: str, value: str, reason: str
) -> None:
    pods.create(a_pod("troubled", "exec sleep 60", terminationGracePeriodSeconds=1))
    pods.wait_for_phase("troubled", "Running")
    pods.annotate("troubled", annotation, value)
    status = pods.wait_for_phase("troubled", "Failed")
    ended = status["containerStatuses"][0]["state"]["terminated"]["reason"]
    assert reason in (status.get("reason"), ended)


def test_a_pod_that_kwok_pretends_ends_as_its_annotations_say(pods: Pods) -> None:
    fake = {"rig.gpuplane.io/kind": "fake"}
    pods.create(a_pod("pretends", "true", nodeSelector=fake))
    pods.wait_for_phase("pretends", "Running")
    pods.annotate("pretends", "rig.gpuplane.io/exit-code", "7")
    status = pods.wait_for_phase("pretends", "Failed")
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 7


def test_a_deleted_pod_is_asked_to_end_and_is_gone_with_its_processes(
    pods: Pods, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    # Kubernetes makes one dollar of two, so the shell's own id takes four.
    told = f"trap 'echo asked > {said}; exit 0' TERM; echo $$$$ > {tmp_path}/pid"
    script = f"{told}; while :; do sleep 0.05; done"
    pods.create(a_pod("ends", script))
    pods.wait_for_phase("ends", "Running")
    pid = int(wait_until(lambda: read_if_there(tmp_path / "pid"), "the pod's process runs"))
    pods.api.delete(f"{pods.path}/ends")
    wait_until(lambda: pods.api.find(f"{pods.path}/ends") is None, "the pod is gone")
    assert said.read_text() == "asked\n"
    assert not is_alive(pid)


def test_a_pod_taken_away_by_force_leaves_no_process_and_its_name_to_the_next(
    pods: Pods, tmp_path: Path
) -> None:
    said = tmp_path / "pid"
    pods.create(a_pod("forced", f"echo $$$$ > {said}; while :; do sleep 0.05; done"))
    pid = int(wait_until(lambda: read_if_there(said), "the pod's process runs"))
    pods.api.delete(f"{pods.path}/forced?gracePeriodSeconds=0")
    pods.create(a_pod("forced", "echo the next"))
    pods.wait_for_phase("forced", "Succeeded")
    assert pods.log_of("forced") == "the next\n"
    wait_until(lambda: not is_alive(pid), "the first one's process ended")


def test_a_crashing_container_is_restarted_and_its_previous_log_kept(pods: Pods) -> None:
    pod = a_pod("crashes", "echo once; exit 1")
    pod["spec"]["restartPolicy"] = "Always"
    pods.create(pod)

    def restarts() -> int:
        statuses = pods.status_of("crashes").get("containerStatuses") or [{}]
        return int(statuses[0].get("restartCount", 0))

    wait_until(lambda: restarts() >= 1, "the container was restarted")
    assert pods.log_of("crashes", previous="true") == "once\n"


@pytest.mark.usefixtures("rig_binaries")
def test_the_api_server_killed_and_started_again_still_has_everything() -> None:
    with running_rig(RigPlan(nodes=[("h100", 1)], process_nodes=[("cpu", 1)], kueue=False)) as rig:
        api = rig.manager.api()
        pods = Pods(api, "default")
        server = rig.manager.parts["kube-apiserver"]
        server.kill()
        assert not api.is_ready()
        server.start_again()
        assert api.find("/api/v1/nodes/h100-1") is not None
        pods.create(a_pod("after", "echo back"))
        pods.wait_for_phase("after", "Succeeded")
        api.close()
    assert not rig.folder.exists()


@pytest.mark.usefixtures("rig_binaries")
@pytest.mark.parametrize("ending", ["down", "killed"])
def test_a_rig_kept_by_hand_leaves_nothing(tmp_path: Path, ending: str) -> None:
    folder = tmp_path / "rig"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "rig", *words, "--folder", str(folder)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )

    started = run("up", "--no-kueue", "--nodes", "", "--process-nodes", "cpu=1")
    assert "manager: " in started.stdout, started.stderr
    again = run("up")
    assert again.stdout == started.stdout  # the one that runs, not another
    state = find_rig(folder)
    assert state is not None
    os.kill(state["parts"]["manager"]["kwok"], signal.SIGKILL)
    wait_until(lambda: "manager/kwok ended; its log: " in run("status").stdout, "its end is said")
    try:
        assert processes_of(folder)
    finally:
        if ending == "killed":
            os.kill(state["pid"], signal.SIGKILL)
        else:
            assert run("down").stdout == "stopped\n"
    wait_until(lambda: processes_of(folder) == [], "every process of the rig ended")
    assert run("status").returncode == 1
    if ending == "down":
        assert list(folder.iterdir()) == []


def read_if_there(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def processes_of(folder: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if entry.name.isdigit() and str(folder).encode() in command:
            found.append(int(entry.name))
    return found
