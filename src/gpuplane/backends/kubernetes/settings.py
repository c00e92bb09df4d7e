"""The settings of a Kubernetes cluster as a backend, each with its unit and its reason."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class VolumeSource:
    """What a named volume is on this cluster.

    Args:
        kind: `claim`, `nfs`, `local_ssd`, `ephemeral` or `memory`.
        claim: For `claim`: the name of a PersistentVolumeClaim that is there already; empty makes
            one for each tenant.
        storage_class: For claims that are made, and for `local_ssd`; empty is the cluster's own.
        size_mib: For what is made; 0 leaves `ephemeral` and `memory` unbounded.
        server: For `nfs`: the host.
        path: For `nfs`: the exported path.
        access_mode: For claims that are made.
    """

    kind: str = "claim"
    claim: str = ""
    storage_class: str = ""
    size_mib: int = 10_240
    server: str = ""
    path: str = ""
    access_mode: str = "ReadWriteOnce"


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """Limits and habits of the product on one cluster.

    Args:
        admission: `embedded`: our scheduler chose node and GPUs. `kueue`: Kueue admits and
            kube-scheduler places.
        former_ids: Ids that the cluster had before our database was lost; what carries them is
            ours too.
        manager_ids: Ids of clusters that dispatch work to this one: what they sent carries theirs.
        records_namespace: Where records of attempts lie; tenants have no rights there.
        default_image: For jobs that name none; empty refuses them.
        tolerates_control_plane: Whether nodes of the control plane take jobs too.
        volumes: What names of volumes mean here; a name that is not there is a claim of the
            tenant's own.
        share_scheduler: Who places pods with a share of a GPU: HAMi's, for only it counts shares.
        finished_ttl_s: How long pods of a job that succeeded are kept.
        failed_ttl_s: How long pods of a job that failed are kept, to be looked at with kubectl.
        debug_ttl_s: The same for a job with the label `debug: "true"`.
        forgotten_s: How long the record of a forgotten attempt still forbids a late start.
        orphan_s: How old an object of ours must be before it is swept when no record owns it.
        claim_days: How long the claim of a job that is over is kept.
        max_log_bytes: Kept of one replica's output; kubelets keep 10 MiB by default.
        log_followers: Logs that are read off the cluster at the same time.
        log_timeout_s: How long the output of a replica that has ended may take to be read off.
        expose: Which services are reached from outside by a Route: `asked` those whose job has the
            label `expose: "true"`, `all` wherever Routes are served, `none` none.
        report_image: Where the container runs that keeps the last report of a job; empty for the
            job's own image where a shell is known to be in it, `none` for nowhere.
        report_s: How often a pod is asked for its progress and checkpoints.
        report_reads_per_s: Pods that are asked in a second; each costs the API server a stream.
        max_workspace_bytes: Of a packed working directory that travels to the cluster: it lies in
            etcd, 0.9 MiB an object, until the attempt's workload goes.
        max_exec_bytes: Most that a command run beside a replica may print on each stream.
        requests_at_once: Objects that are written at the same time.
        max_untold_ends: Of a service whose pods Kueue admits: ended replicas that its record may
            hold before no more pods get ranks; the control plane takes them in within seconds.
        remembered_pods: Of such a service: pods that are remembered after their replicas were
            taken in, so that nobody who still sees one counts it again.
    """

    admission: str = "embedded"
    former_ids: tuple[str, ...] = ()
    manager_ids: tuple[str, ...] = ()
    records_namespace: str = "gpuplane-system"
    default_image: str = ""
    tolerates_control_plane: bool = False
    volumes: Mapping[str, VolumeSource] = field(default_factory=dict)
    share_scheduler: str = "hami-scheduler"
    finished_ttl_s: int = 3_600
    failed_ttl_s: int = 86_400
    debug_ttl_s: int = 7 * 86_400
    forgotten_s: int = 7 * 86_400
    orphan_s: int = 600
    claim_days: int = 7
    max_log_bytes: int = 64 << 20
    log_followers: int = 32
    log_timeout_s: float = 30.0
    expose: str = "asked"
    report_image: str = ""
    report_s: float = 15.0
    report_reads_per_s: int = 4
    max_workspace_bytes: int = 8 << 20
    max_exec_bytes: int = 1 << 20
    requests_at_once: int = 32
    max_untold_ends: int = 1_000
    remembered_pods: int = 64
