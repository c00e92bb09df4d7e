"""Settings of registered clusters: how they are looked at and what is installed in them."""

from dataclasses import dataclass

from gpuplane.entry.described import setting


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Clusters that are registered by kubeconfig."""

    look_s: float = setting(15.0, "seconds", "how often each is asked whether it is well",
                            within=(0.05, 86_400))  # fmt: skip
    call_s: float = setting(10.0, "seconds", "how long one may take to answer all of a look",
                            within=(0.1, 600))  # fmt: skip
    tries: int = setting(3, "tries", "after so many more that fail it is ERROR", within=(0, 100))
    retry_base_s: float = setting(
        30.0, "seconds", "before the first of them; each waits twice as long", within=(0.05, 86_400)
    )
    breaker_failures: int = setting(
        5, "failures", "so many within the window open the breaker", within=(1, 100)
    )
    breaker_window_s: float = setting(300.0, "seconds", "within which they count",
                                      within=(1, 86_400))  # fmt: skip
    breaker_open_s: float = setting(
        300.0, "seconds", "how long an open breaker lets nothing through", within=(1, 86_400)
    )
    worker_lost_s: float = setting(
        900.0,
        "seconds",
        "how long a worker of MultiKueue may be out of reach before what it cannot have started is "
        "offered anew; as Kueue's workerLostTimeout",
        within=(1, 86_400),
    )
    worker_connect_s: float = setting(
        15.0,
        "seconds",
        "how long Kueue on a manager may take to connect with a worker before the step says why it "
        "has not",
        within=(0, 60),
    )
    helm: str = setting(
        "", "path or name of the binary",
        "what installs add-ons and charts of jobs; without it none is installed",
    )  # fmt: skip
    charts: str = setting(
        "", "folder", "charts as <name>-<version>.tgz, taken before the network's"
    )
    chart_sources: str = setting(
        "", "addresses with commas between",
        "where charts of jobs may come from: beginnings of https:// and oci://; none when empty",
    )  # fmt: skip
    chart_check_s: float = setting(
        10.0, "seconds", "how long a submit waits for its chart to be rendered and checked; what"
        " cannot be known by then is told at the start, as is all with 0", within=(0, 60),
    )  # fmt: skip
    chart_memory_mib: int = setting(
        1024, "MiB", "what rendering one chart of a job may take of this server before it is"
        " refused, Helm's own code not counted; charts take 20 to 50", within=(128, 65_536),
    )  # fmt: skip
    addons: str = setting(
        "", "names with commas between", "the add-ons that may be installed; all when it is empty"
    )
    nfd_detection_timeout_s: float = setting(
        30.0, "seconds", "how long node labels are waited for, each of two times",
        within=(0.05, 3_600),
    )  # fmt: skip
    hami_scheduler_port: int = setting(
        31_993, "node port", "where HAMi's scheduler tells its metrics", within=(30_000, 32_767)
    )
    hami_utilization_threshold: int = setting(
        80, "percent", "a GPU that is given away so far counts as not available", within=(1, 100)
    )
    enable_hami_metrics: bool = setting(
        False, "true or false", "whether they are read from each cluster with HAMi"
    )
    receiver: str = setting(
        "", "URL, empty for none", "where clusters write their metrics to; off until it is set"
    )
    registrations_per_minute: int = setting(
        10, "calls per user, 0 for no limit", "each reaches out to a cluster", within=(0, 100_000)
    )
    deployments_per_minute: int = setting(
        5, "calls per user, 0 for no limit", "each has Helm deploy into a cluster",
        within=(0, 100_000),
    )  # fmt: skip
    node_reads_per_minute: int = setting(
        100, "calls per user, 0 for no limit", "each reads all nodes of a cluster",
        within=(0, 100_000),
    )  # fmt: skip
