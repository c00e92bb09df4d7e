"""What the kinds of jobs become on a real cluster, and what comes back of them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace

from gpuplane.backends.interface import AttemptPlan, Phase, ReplicaPlan, Stream
from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.backend import KubernetesBackend
from gpuplane.core.ids import GpuId, ReplicaId
from gpuplane.core.reasons import Word
from gpuplane.core.workloads import HealthCheck, JobType, ResourceRequest
from gpuplane.kit.ids import new_id
from gpuplane.kube.kinds import CONFIG_MAP, DEPLOYMENT, JOB, NAMESPACE, POD, SECRET, SERVICE
from gpuplane.kube.tenancy import namespace_of
from tests.contract.builders import a_plan
from tests.contract.factories import replicas_of, until, until_over, until_phase
from tests.contract.kubernetes import SETTINGS, KubernetesFactory, MovedClock

SMALL = ResourceRequest(cpu_milli=100, memory_mib=64, ephemeral_mib=64)
NODES = ("process-h100-1", "process-h100-2")
SERVER = (
    "import http.server, os\n"
    "handler = http.server.SimpleHTTPRequestHandler\n"
    "http.server.HTTPServer(('', int(os.environ['PORT'])), handler).serve_forever()"
)


def on_nodes(plan: AttemptPlan, nodes: Sequence[str]) -> AttemptPlan:
    """Return a plan with one replica on each of these nodes, each with a GPU of its own."""
    return replace(
        plan,
        replicas=tuple(
            ReplicaPlan(ReplicaId(new_id()), rank, node, (GpuId(f"{node}/{rank}"),))
            for rank, node in enumerate(nodes)
        ),
    )


def labels_of(plan: AttemptPlan) -> dict[str, str]:
    """Return the label by which the objects of an attempt are found."""
    return {names.ATTEMPT_ID: str(plan.ref.attempt_id)}


async def test_each_rank_of_a_training_runs_on_the_node_that_was_chosen_for_it(
    factory: KubernetesFactory, backend: KubernetesBackend
) -> None:
    script = 'echo "$RANK of $WORLD_SIZE at $GPUPLANE_NODE, master $MASTER_ADDR:$MASTER_PORT"'
    plan = on_nodes(
        a_plan(
            job_type=JobType.TRAINING,
            resources=replace(SMALL, gpu_count=1),
            command=("/bin/sh", "-c", script),
        ),
        NODES,
    )
    await backend.ensure_workload(plan, {})
    replicas = await until_over(factory, backend, plan.ref)
    assert [(r.reason, r.node_name) for r in replicas] == [(Word.COMPLETED, n) for n in NODES]
    assert [r.gpu_ids for r in replicas] == [(f"{n}/{i}",) for i, n in enumerate(NODES)]
    name = names.workload_name(plan.job_name, plan.ref.attempt_id)
    for rank, node in enumerate(NODES):
        text = (await backend.read_logs(plan.ref, rank, Stream.STDOUT, 0, 1000)).data.decode()
        assert text == f"{rank} of 2 at {node}, master {name}-0.{name}:29500\n"
    [headless] = await backend.client.list(SERVICE, labels=labels_of(plan))
    assert headless["spec"]["clusterIP"] == "None"


async def test_a_tenant_with_the_longest_name_has_a_walled_namespace_of_its_own(
    factory: KubernetesFactory, backend: KubernetesBackend
) -> None:
    name = uuid.uuid4().hex + "-" * 10 + "a" * 21
    plan = replace(
        a_plan(node_name=factory.node_name, resources=SMALL, command=("true",)), tenant_name=name
    )
    await backend.ensure_workload(plan, {})
    [over] = await until_over(factory, backend, plan.ref)
    assert over.reason == Word.COMPLETED
    labels = (await backend.client.get(NAMESPACE, namespace_of(name)))["metadata"]["labels"]
    ours = {names.TENANT: name, names.TENANT_ID: str(plan.tenant_id)}
    assert labels.items() >= ours.items()
    assert labels[names.CLUSTER] == str(backend.cluster_id)
    assert labels["pod-security.kubernetes.io/enforce"] == "baseline"


async def test_a_failed_rank_ends_the_others_and_is_told_from_them(
    factory: KubernetesFactory, backend: KubernetesBackend
) -> None:
    script = '[ "$RANK" = 1 ] && exit 7; sleep 600'
    plan = on_nodes(a_plan(resources=SMALL, command=("/bin/sh", "-c", script), grace_s=1), NODES)
    await backend.ensure_workload(plan, {})
    first, second = await until_over(factory, backend, plan.ref)
    assert (second.reason, second.exit_code) == (Word.NON_ZERO_EXIT, 7)
    assert first.phase is Phase.EXITED
    assert first.exit_code != 0


async def test_a_service_has_an_address_is_ready_and_goes_when_it_is_evicted(
    factory: KubernetesFactory, backend: KubernetesBackend
) -> None:
    plan = a_plan(
        node_name=factory.node_name,
        job_type=JobType.SERVICE,
        resources=SMALL,
        command=("python3", "-c", SERVER),
        port=18_311,
        health=HealthCheck(path="/"),
    )
    await backend.ensure_workload(plan, {})
    seen = await until(
        factory,
        backend,
        lambda now: [r for r in replicas_of(now, plan.ref) if r.ready],
        "the service is ready",
    )
    [replica] = replicas_of(seen, plan.ref)
    name = names.workload_name(plan.job_name, plan.ref.attempt_id)
    assert replica.url == f"http://{name}.tenant-default.svc:18311"
    [service] = await backend.client.list(SERVICE, labels=labels_of(plan))
    assert service["spec"]["ports"][0]["port"] == 18_311
    await backend.evict(plan.ref, 1.0, Word.CANCELLED)
    [over] = await until_over(factory, backend, plan.ref)
    assert over.reason == Word.CANCELLED
    assert await backend.client.list(DEPLOYMENT, labels=labels_of(plan)) == []


async def test_secrets_reach_the_process_and_go_with_the_workload(
    factory: KubernetesFactory, backend: KubernetesBackend
) -> None:
    script = 'test "${#TOKEN}" = 11 && sleep 600'
    plan = a_plan(node_name=factory.node_name, resources=SMALL, command=("/bin/sh", "-c", script))
    await backend.ensure_workload(plan, {"TOKEN": "open sesame"})
    await until_phase(factory, backend, plan.ref, Phase.RUNNING)
    [secret] = await backend.client.list(SECRET, labels=labels_of(plan))
    [job] = await backend.client.list(JOB, labels=labels_of(plan))
    [pod] = await backend.client.list(POD, labels=labels_of(plan))
    assert secret["immutable"]
    assert secret["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    assert "open sesame" not in str(pod) + str(job)
    assert pod["spec"]["automountServiceAccountToken"] is False
    await backend.evict(plan.ref, 0.0, Word.CANCELLED)
    await until_over(factory, backend, plan.ref)


async def test_outputs_come_back_from_the_termination_message(
    factory: KubernetesFactory, backend: KubernetesBackend
) -> None:
    script = """echo '{"accuracy": 0.5}' > "$GPUPLANE_OUTPUTS" """
    plan = a_plan(node_name=factory.node_name, resources=SMALL, command=("/bin/sh", "-c", script))
    await backend.ensure_workload(plan, {})
    [replica] = await until_over(factory, backend, plan.ref)
    assert replica.outputs == {"accuracy": 0.5}


async def test_a_command_runs_beside_a_replica(
    factory: KubernetesFactory, backend: KubernetesBackend
) -> None:
    plan = a_plan(node_name=factory.node_name, resources=SMALL, duration_s=600)
    await backend.ensure_workload(plan, {})
    await until_phase(factory, backend, plan.ref, Phase.RUNNING)
    done = await backend.exec(plan.ref, 0, ("/bin/sh", "-c", "cat; exit 4"), b"hello", 20)
    assert (done.exit_code, done.stdout) == (4, b"hello")
    await backend.evict(plan.ref, 0.0, Word.CANCELLED)
    await until_over(factory, backend, plan.ref)


async def test_what_no_node_can_take_says_the_schedulers_own_words(
    factory: KubernetesFactory, backend: KubernetesBackend
) -> None:
    plan = a_plan(node_name="no-such-node", resources=SMALL)
    await backend.ensure_workload(plan, {})
    seen = await until(
        factory,
        backend,
        lambda now: [r for r in replicas_of(now, plan.ref) if "Unschedulable" in r.message],
        "the scheduler's message is told",
    )
    [replica] = replicas_of(seen, plan.ref)
    assert replica.phase is Phase.STARTING
    assert "nodes are available" in replica.message
    await backend.evict(plan.ref, 0.0, Word.CANCELLED)
    [over] = await until_over(factory, backend, plan.ref)
    assert (over.reason, over.exit_code) == (Word.CANCELLED, None)


async def test_a_pod_that_somebody_deletes_is_seen_to_be_over(
    factory: KubernetesFactory, backend: KubernetesBackend
) -> None:
    plan = a_plan(node_name=factory.node_name, resources=SMALL, duration_s=600)
    await backend.ensure_workload(plan, {})
    await until_phase(factory, backend, plan.ref, Phase.RUNNING)
    [pod] = await backend.client.list(POD, labels=labels_of(plan))
    await backend.client.delete(POD, pod["metadata"]["name"], "tenant-default", grace_s=1)
    [replica] = await until_over(factory, backend, plan.ref)
    assert replica.reason in (Word.SIGNALLED, Word.NODE_LOST, Word.DELETED)
    assert replica.exit_code != 0


async def test_a_workload_whose_record_was_lost_is_swept(
    factory: KubernetesFactory, backend: KubernetesBackend
) -> None:
    plan = a_plan(node_name=factory.node_name, resources=SMALL, duration_s=600)
    await backend.ensure_workload(plan, {})
    await until_phase(factory, backend, plan.ref, Phase.RUNNING)
    space = backend.settings.records_namespace
    await backend.client.delete(CONFIG_MAP, names.record_name(plan.ref.attempt_id), space)
    await until(factory, backend, lambda now: not replicas_of(now, plan.ref), "it is unknown")
    sweeper = await factory.open_with(replace(backend.settings, orphan_s=0))
    await sweeper.sweep()
    assert await sweeper.client.list(JOB, labels=labels_of(plan)) == []


async def test_progress_and_checkpoints_are_read_while_the_job_runs(
    factory: KubernetesFactory,
) -> None:
    backend = await factory.open_with(replace(SETTINGS, report_s=0.1))
    script = (
        'echo 0.25 >> "$GPUPLANE_PROGRESS"; echo /c/step-1 >> "$GPUPLANE_CHECKPOINTS"; sleep 600'
    )
    plan = a_plan(node_name=factory.node_name, resources=SMALL, command=("/bin/sh", "-c", script))
    await backend.ensure_workload(plan, {})
    seen = await until(
        factory,
        backend,
        lambda now: [r for r in replicas_of(now, plan.ref) if r.checkpoint],
        "its report is read",
    )
    [replica] = replicas_of(seen, plan.ref)
    assert (replica.progress_ratio, replica.checkpoint) == (0.25, "/c/step-1")
    assert replica.checkpoint_at is not None
    await backend.evict(plan.ref, 0.0, Word.CANCELLED)
    await until_over(factory, backend, plan.ref)


async def test_a_service_whose_deployment_somebody_deletes_is_seen_to_be_over(
    factory: KubernetesFactory,
) -> None:
    factory.clock = clock = MovedClock()
    backend = await factory.open()
    plan = a_plan(
        node_name=factory.node_name,
        job_type=JobType.SERVICE,
        resources=SMALL,
        duration_s=600,
        grace_s=0,
        port=18_312,
    )
    await backend.ensure_workload(plan, {})
    await until_phase(factory, backend, plan.ref, Phase.RUNNING)
    [deployment] = await backend.client.list(DEPLOYMENT, labels=labels_of(plan))
    await backend.client.delete(DEPLOYMENT, deployment["metadata"]["name"], "tenant-default")
    clock.ahead_ms = 30_000
    [replica] = await until_over(factory, backend, plan.ref)
    assert (replica.phase, replica.reason) == (Phase.LOST, Word.DELETED)
