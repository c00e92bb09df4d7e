"""Every setting of the control plane: one frozen object.

Each field says its unit, its reason and its bounds. Never reads one: `entry.environment` does, and
makes `docs/reference/settings.md` of them.
"""

from dataclasses import dataclass, field
from pathlib import Path

from gpuplane.core.scheduling.policy import PlacementPolicy
from gpuplane.entry.cluster_settings import ClusterSettings
from gpuplane.entry.described import setting
from gpuplane.kit.depths import MAX_JSON_DEPTH

YEAR_S = 31_536_000
INTERVAL_S = (0.05, 86_400)
"""Below a twentieth of a second a loop would leave no time to those who ask."""
KEPT_DAYS = (0.01, 36_500)
"""A quarter of an hour at least, so that whoever waits for an end still finds it."""
PERCENT = (0, 100)
SIZE = (1024, 1 << 50)


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """The API's socket and the size of what it accepts."""

    body_bytes: int = setting(
        2 << 20, "bytes", "a manifest of 1,000 jobs is a tenth of it", within=(1024, 1 << 30)
    )
    json_depth: int = setting(
        MAX_JSON_DEPTH, "levels", "deeper JSON has no meaning here", within=(1, 200)
    )
    submits_per_s: float = setting(
        0.0,
        "submits per second and tenant, 0 for no limit",
        "one tenant's loop must not starve the others",
        within=(0, 1_000_000),
    )
    submit_burst: int = setting(1000, "submits", "a sweep may come at once", within=(1, 1_000_000))
    streams: int = setting(
        200, "readers", "each follows the event stream on an open socket", within=(0, 100_000)
    )
    log_followers: int = setting(
        500,
        "readers per server",
        "each holds a socket and looks for new output ten times a second",
        within=(0, 100_000),
    )
    workspace_bytes: int = setting(
        256 << 20,
        "bytes",
        "an uploaded working directory; data belongs into volumes",
        within=(1024, 1 << 40),
    )
    tls_certificate: str = setting(
        "", "PEM file with the chain", "serves HTTPS; read again when it changes; HTTP without it"
    )
    tls_key: str = setting("", "PEM file, unencrypted", "of that certificate")


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """What one tenant may have."""

    unfinished_jobs: int = setting(
        100_000,
        "jobs per tenant, 0 for no limit",
        "the queue is read as a whole",
        within=(0, 100_000_000),
    )
    array_size: int = setting(10_000, "jobs", "one submit is one transaction", within=(1, 100_000))


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Durable runs: their limits, and how this process works on them."""

    steps: int = setting(
        10_000, "steps per run", "one start is one transaction", within=(1, 1_000_000)
    )
    edges: int = setting(
        100_000, "dependencies per run", "they are stored with the steps", within=(0, 10_000_000)
    )
    depth: int = setting(
        8, "levels of steps within steps", "loops in loops multiply", within=(1, 64)
    )
    open_runs: int = setting(
        200_000,
        "runs per project that are not over",
        "they are counted at each start, 60 ns each",
        within=(1, 100_000_000),
    )
    output_bytes: int = setting(
        1 << 20, "bytes per step", "large data belongs into artifacts", within=(1024, 1 << 26)
    )
    outputs_bytes: int = setting(
        64 << 20, "bytes per run, all outputs", "a step may see all of them", within=(1024, 1 << 30)
    )
    event_bytes: int = setting(
        256 << 10, "bytes per event", "it is stored with the step", within=(256, 1 << 26)
    )
    kept_events: int = setting(
        1_000, "events per run", "that no step awaited yet", within=(0, 1_000_000)
    )
    handlers: int = setting(
        512, "handlers at once", "each is a task of this process", within=(1, 10_000)
    )
    share: int = setting(
        384,
        "handlers at once of one run",
        "one run must not hold up all others",
        within=(1, 10_000),
    )
    lease_s: float = setting(
        10.0,
        "seconds",
        "after so long without a beat, and a third of it, others take a worker's steps",
        within=(0.5, 600),
    )
    poll_s: float = setting(
        1.0,
        "seconds",
        "how often a worker looks for what other processes left due",
        within=INTERVAL_S,
    )


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """How often loops look when nothing wakes them."""

    scheduler_s: float = setting(
        10.0, "seconds", "time windows open without an event", within=INTERVAL_S
    )
    dispatcher_s: float = setting(
        5.0, "seconds", "a backend that was away is tried again", within=INTERVAL_S
    )
    observer_s: float = setting(
        5.0, "seconds", "a change that no watcher saw is found", within=INTERVAL_S
    )
    inventory_s: float = setting(
        10.0, "seconds", "nodes and GPUs come, fail and go", within=INTERVAL_S
    )
    monitor_s: float = setting(
        1.0, "seconds", "the resolution of deadlines and gates", within=INTERVAL_S
    )
    learner_s: float = setting(
        10.0, "seconds", "backstop; the end of an attempt wakes it", within=INTERVAL_S
    )
    retention_s: float = setting(3600.0, "seconds", "pruning is not urgent", within=(1, 604_800))


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """How long things are kept."""

    jobs_days: float = setting(
        90.0, "days", "after their end; the ledger keeps its lines for ever", within=KEPT_DAYS
    )
    logs_days: float = setting(14.0, "days", "after the end of the attempt", within=KEPT_DAYS)
    events_days: float = setting(
        90.0, "days", "spec scenario 1.2: audit for 90 days at least", within=KEPT_DAYS
    )
    runs_days: float = setting(
        90.0, "days", "after their end, with their steps and outputs", within=KEPT_DAYS
    )
    answers_hours: float = setting(
        24.0, "hours", "how long an Idempotency-Key is remembered", within=(0.1, 8_760)
    )


@dataclass(frozen=True, slots=True)
class SchedulingSettings:
    """How the scheduler decides."""

    placement: str = setting(
        "fragmentation",
        "policy",
        "leaves the least GPU capacity that typical work cannot use",
        among=tuple(PlacementPolicy),
    )
    seed: int = setting(
        0,
        "number",
        "breaks ties; the same input and seed decide the same",
        within=(0, (1 << 63) - 1),
    )
    preemption: bool = setting(True, "true or false", "whether higher classes may stop lower ones")
    repartition: bool = setting(True, "true or false", "whether MIG instances that nobody holds "
                                "give way to one that is asked for")  # fmt: skip
    hint_points: int = setting(
        10,
        "points of 100",
        "most that a prediction adds to or takes from a node's score; 0 for none",
        within=(0, 100),
    )
    victims_by_loss: bool = setting(True, "true or false", "victims for quota are those that lose "
                                    "least; false takes those that Kueue takes")  # fmt: skip
    recordings: int = setting(
        0,
        "files",
        "so many of the last decisions are kept in the home folder with all they were made from",
        within=(0, 100_000),
    )
    no_show_s: int = setting(
        3600,
        "seconds",
        "a reservation that nobody uses so long after its beginning is given up; 0 keeps it",
        within=(0, YEAR_S),
    )


@dataclass(frozen=True, slots=True)
class DecisionSettings:
    """Decisions and forecasts that take long, worked out in a child process.

    The scheduler has one child and the questions of people have another.
    """

    inline_ms: float = setting(
        20.0,
        "milliseconds",
        "what is expected to take longer leaves the server's process; 0 sends everything",
        within=(0, 3_600_000),
    )
    timeout_s: float = setting(
        120.0, "seconds", "a decision that takes longer is given up", within=(0.1, 86_400)
    )
    memory_mib: int = setting(
        4096, "MiB per child", "100,000 waiting jobs take about 1,000", within=(128, 1 << 20)
    )
    idle_s: float = setting(
        30.0,
        "seconds",
        "a child that nobody asks is stopped: it holds about 40 MB",
        within=(0, 86_400),
    )


@dataclass(frozen=True, slots=True)
class TargetSettings:
    """Targets of the priority classes; a breach risk at 80 % of one is an event."""

    critical_wait_s: int = setting(300, "seconds (p99)", "spec scenario 14", within=(1, YEAR_S))
    high_wait_s: int = setting(1800, "seconds (p99)", "spec scenario 14", within=(1, YEAR_S))
    normal_wait_s: int = setting(7200, "seconds (p99)", "spec scenario 14", within=(1, YEAR_S))
    critical_uptime: float = setting(99.99, "percent", "spec scenario 14", within=PERCENT)
    high_uptime: float = setting(99.9, "percent", "spec scenario 14", within=PERCENT)
    normal_uptime: float = setting(99.5, "percent", "spec scenario 14", within=PERCENT)
    uptime_window_days: float = setting(
        30.0,
        "days",
        "the rolling window in which the down time of a service counts",
        within=(0.01, 3_650),
    )


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """Outgoing webhooks."""

    max_tries: int = setting(8, "tries", "with back-off that is about an hour", within=(1, 100))
    timeout_s: float = setting(
        10.0, "seconds", "a slow receiver must not hold the sender", within=(0.1, 600)
    )
    disable_after: int = setting(
        50, "failed tries in a row", "a receiver that is gone is left", within=(1, 1_000_000)
    )
    per_tenant: int = setting(
        50, "webhooks", "each event is matched against all of them", within=(0, 100_000)
    )
    allowed_hosts: str = setting("", "host names, comma-separated", "private and loopback "
                                 "addresses are refused unless named here")  # fmt: skip


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """What steps and triggers of pipelines may reach."""

    catalogue: str = setting("", "path", "what component_ref and models stand for; none without")
    allowed_hosts: str = setting("", "host names, comma-separated", "API_CALL reaches no private "
                                 "or loopback address that is not named here")  # fmt: skip
    folders: str = setting("", "paths, comma-separated", "folder triggers look nowhere else")
    slack_url: str = setting("", "URL", "the incoming webhook of the channel slack")
    pagerduty_key: str = setting("", "key", "the integration key of the channel pagerduty")
    pagerduty_url: str = setting(
        "https://events.pagerduty.com/v2/enqueue", "URL", "the Events API, or a relay before it"
    )
    smtp_url: str = setting("", "URL", "the mail server, smtp+starttls://user:password@host:587")
    mail_from: str = setting("", "address", "who mails are from")
    response_bytes: int = setting(
        1 << 20, "bytes", "a longer answer of an API_CALL is refused", within=(1024, 1 << 30)
    )
    network: bool = setting(False, "true or false", "whether a FUNCTION may ask for the network")
    triggers_s: float = setting(2.0, "seconds", "how late a trigger may fire", within=INTERVAL_S)


@dataclass(frozen=True, slots=True)
class LocalMachineSettings:
    """What jobs on this machine may leave behind."""

    max_log_bytes: int = setting(
        64 << 20, "bytes per stream and replica", "the oldest segments go first", within=SIZE
    )
    log_segment_bytes: int = setting(
        8 << 20, "bytes", "the step in which old output goes", within=SIZE
    )
    max_artifact_bytes: int = setting(
        10 << 30, "bytes per attempt", "artifacts are copied", within=SIZE
    )
    max_workspace_bytes: int = setting(
        10 << 30, "bytes", "an unpacked working directory", within=SIZE
    )
    max_exec_bytes: int = setting(
        1 << 20, "bytes per stream", "the answer is held in memory", within=(1024, 1 << 30)
    )


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """Traces."""

    otlp_endpoint: str = setting("", "URL, empty for none", "OpenTelemetry traces over OTLP/HTTP")


@dataclass(frozen=True, slots=True)
class OidcSettings:
    """Login by OpenID Connect."""

    issuers: str = setting("", "JSON list of issuers, empty for none", "any issuer, Keycloak "
                           "among them; see docs/reference/oidc.md")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting, grouped."""

    home: Path = setting(Path("~/.gpuplane"), "folder", "data, keys and logs of one control plane")
    host: str = setting("127.0.0.1", "address", "nothing listens beyond loopback unless told")
    port: int = setting(7070, "TCP port", "0 takes a free one", within=(0, 65_535))
    database_url: str = setting("", "URL, empty for SQLite in the home", "sqlite:///… or "
                                "postgresql://…")  # fmt: skip
    log_level: str = setting(
        "info",
        "level",
        "how much is logged",
        among=("debug", "info", "warning", "error"),
    )
    http: HttpSettings = field(default_factory=HttpSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    runs: RunSettings = field(default_factory=RunSettings)
    loops: LoopSettings = field(default_factory=LoopSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    scheduling: SchedulingSettings = field(default_factory=SchedulingSettings)
    decisions: DecisionSettings = field(default_factory=DecisionSettings)
    targets: TargetSettings = field(default_factory=TargetSettings)
    webhooks: WebhookSettings = field(default_factory=WebhookSettings)
    pipelines: PipelineSettings = field(default_factory=PipelineSettings)
    local: LocalMachineSettings = field(default_factory=LocalMachineSettings)
    clusters: ClusterSettings = field(default_factory=ClusterSettings)
    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)
    oidc: OidcSettings = field(default_factory=OidcSettings)

    @property
    def sql_url(self) -> str:
        """Return the database's URL, SQLite in the home when none is set."""
        return self.database_url or f"sqlite:///{self.home / 'gpuplane.db'}"
