"""The settings of the local backend, each with its unit and its reason."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """Limits and habits of this machine as a cluster.

    Args:
        node_name: Name of the one node; empty means the host's name.
        max_log_bytes: Kept a stream and replica; the oldest segments go first. 64 MiB holds
            about half a million lines, and 200 jobs of it fit on a laptop's disk.
        log_segment_bytes: Size of a segment, the step in which old output goes.
        max_artifact_bytes: Most that the artifacts of one attempt may take.
        max_workspace_bytes: Most that an unpacked working directory may take.
        max_report_bytes: Longest progress, outputs or checkpoints file that is read back.
        max_exec_bytes: Most that a command run beside a replica may print on each stream.
        start_timeout_s: How long a supervisor may take to claim its attempt; it takes 30 ms.
        stuck_s: How long after the grace of an eviction a supervisor that still has not ended its
            attempt is killed by the next eviction, and with it all that it runs.
        restart_delay_s: First pause before a replica starts again; doubles each time.
        restart_max_delay_s: Longest pause (Kubernetes' five minutes).
        forgotten_s: How long the id of a forgotten attempt still forbids a late start.
        inherited_env: Names that a job takes over from the control plane's environment: where
            libraries lie, the zone, and how to reach the network. Nothing else is passed on.
        lock_folder: Where the machine's GPU lock lies; None means `/run/lock`, else `/tmp`.
        cgroup_base: A cgroup v2 folder to make limits in; None means look for one, "" means none.
    """

    node_name: str = ""
    max_log_bytes: int = 64 << 20
    log_segment_bytes: int = 8 << 20
    max_artifact_bytes: int = 10 << 30
    max_workspace_bytes: int = 10 << 30
    max_report_bytes: int = 1 << 20
    max_exec_bytes: int = 1 << 20
    start_timeout_s: float = 30.0
    stuck_s: float = 30.0
    restart_delay_s: float = 1.0
    restart_max_delay_s: float = 300.0
    forgotten_s: float = 7 * 86_400.0
    inherited_env: tuple[str, ...] = (
        "LANG",
        "LC_ALL",
        "TZ",
        "LD_LIBRARY_PATH",
        "CUDA_HOME",
        "CUDA_PATH",
        "SSL_CERT_FILE",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
        "http_proxy",
        "https_proxy",
        "no_proxy",
    )
    lock_folder: Path | None = None
    cgroup_base: str | None = None
