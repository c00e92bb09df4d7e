"""The environment of a replica, computed from its plan. Pure: what is inherited is an argument.

Later entries win: base, inherited names, control plane, job, secrets, and last the names that
gpuplane answers for, which a job may not overwrite:

    GPUPLANE_JOB_ID, _JOB_NAME, _ATTEMPT_ID, _ATTEMPT, _REPLICA_ID, _RANK, _TENANT, _PROJECT,
    _NODE, _SEED            who it is
    GPUPLANE_WORKDIR        the unpacked workspace
    GPUPLANE_PROGRESS       a file: add a line with a ratio in [0, 1], or JSON with `ratio`
    GPUPLANE_CHECKPOINTS    a file: add a line with a checkpoint's path, or JSON with `path`
    GPUPLANE_OUTPUTS        a file to write one JSON object to
    GPUPLANE_CHECKPOINT_DIR kept from attempt to attempt; also linked at the checkpoint path
    GPUPLANE_RESUME_FROM    the checkpoint to go on from, if there is one
    GPUPLANE_MOUNT_<NAME>   the folder of a volume; there is no chroot here, so a mount at /data
                            is the link `data` in the working directory
    PORT, RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT
    CUDA_VISIBLE_DEVICES    UUIDs of GPUs or MIG instances; empty without any
"""

from collections.abc import Mapping, Sequence

from gpuplane.backends.interface import AttemptPlan, ReplicaPlan

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def compute_environment(
    plan: AttemptPlan,
    replica: ReplicaPlan,
    secrets: Mapping[str, str],
    *,
    folder: str,
    checkpoint_folder: str,
    visible_devices: str,
    inherited: Mapping[str, str],
    inherited_names: Sequence[str],
) -> dict[str, str]:
    """Return the whole environment of one replica except the ports, chosen at its start.

    Args:
        folder: The replica's folder; reports and temporary files lie there.
        checkpoint_folder: Kept from attempt to attempt of the job; empty for none.
        visible_devices: What CUDA may see: UUIDs of GPUs or MIG instances; empty for none.
        inherited: The control plane's own environment.
    """
    env = {
        "PATH": inherited.get("PATH") or DEFAULT_PATH,
        "HOME": inherited.get("HOME") or folder,
        "USER": inherited.get("USER") or "gpuplane",
        "LOGNAME": inherited.get("LOGNAME") or inherited.get("USER") or "gpuplane",
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
        "TMPDIR": f"{folder}/tmp",
        # Python keeps lines back when its output is a pipe; a log that is followed needs them.
        "PYTHONUNBUFFERED": "1",
    }
    env |= {name: inherited[name] for name in inherited_names if name in inherited}
    env |= plan.env
    env |= plan.execution.env
    env |= secrets
    env |= _product_names(plan, replica, folder, checkpoint_folder)
    env |= _rank_names(plan, replica)
    env |= _device_names(replica, visible_devices)
    return env


def _product_names(
    plan: AttemptPlan, replica: ReplicaPlan, folder: str, checkpoint_folder: str
) -> dict[str, str]:
    names = {
        "GPUPLANE_JOB_ID": str(plan.job_id),
        "GPUPLANE_JOB_NAME": plan.job_name,
        "GPUPLANE_ATTEMPT_ID": str(plan.ref.attempt_id),
        "GPUPLANE_ATTEMPT": str(plan.attempt_number),
        "GPUPLANE_REPLICA_ID": str(replica.replica_id),
        "GPUPLANE_RANK": str(replica.rank),
        "GPUPLANE_TENANT": plan.tenant_name,
        "GPUPLANE_PROJECT": plan.project_name,
        "GPUPLANE_NODE": replica.node_name,
        "GPUPLANE_WORKDIR": f"{folder}/work",
        "GPUPLANE_OUTPUTS": f"{folder}/report/outputs.json",
        "GPUPLANE_PROGRESS": f"{folder}/report/progress",
        "GPUPLANE_CHECKPOINTS": f"{folder}/report/checkpoints",
    }
    if checkpoint_folder:
        names["GPUPLANE_CHECKPOINT_DIR"] = checkpoint_folder
    if plan.resume_from:
        names["GPUPLANE_RESUME_FROM"] = plan.resume_from
    if plan.execution.seed is not None:
        names["GPUPLANE_SEED"] = str(plan.execution.seed)
    return names


def _rank_names(plan: AttemptPlan, replica: ReplicaPlan) -> dict[str, str]:
    """Return the names that torch.distributed and its kin read; only for several replicas."""
    if len(plan.replicas) < 2:
        return {}
    ranks = sorted(other.rank for other in plan.replicas)
    return {
        "RANK": str(replica.rank),
        "WORLD_SIZE": str(len(plan.replicas)),
        # All replicas lie on this machine, so the local rank is the place among them.
        "LOCAL_RANK": str(ranks.index(replica.rank)),
        "LOCAL_WORLD_SIZE": str(len(plan.replicas)),
        "MASTER_ADDR": "127.0.0.1",
    }


def _device_names(replica: ReplicaPlan, visible: str) -> dict[str, str]:
    names = {"CUDA_VISIBLE_DEVICES": visible, "NVIDIA_VISIBLE_DEVICES": visible or "void"}
    if replica.gpu_ids and replica.gpu_milli < 1000:
        names["GPUPLANE_GPU_MILLI"] = str(replica.gpu_milli)
    return names
