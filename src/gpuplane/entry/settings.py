"""Every setting of the control plane: one frozen object, unknown keys are errors.

A setting `group.name` is read from `GPUPLANE_GROUP_NAME`; the plain ones at the top from
`GPUPLANE_NAME`. Each field says its unit and its reason, and `docs/reference/settings.md` is made
from here.
"""

import dataclasses
import difflib
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpuplane.core.scheduling.policy import PlacementPolicy
from gpuplane.entry.cluster_settings import ClusterSettings
from gpuplane.entry.described import SettingsError, setting
from gpuplane.kit.depths import MAX_JSON_DEPTH

__all__ = ["Described", "Settings", "SettingsError", "describe_settings", "load_settings"]

PREFIX = "GPUPLANE_"
NOT_SETTINGS = frozenset(
    {
        "GPUPLANE_URL",
        "GPUPLANE_TOKEN",
        "GPUPLANE_PROJECT",
        "GPUPLANE_PROVISIONING_BINARY",
        "GPUPLANE_PROVISIONING_TIMEOUT",
        "GPUPLANE_DATA",
        "GPUPLANE_FAILPOINTS",
        "GPUPLANE_FAILPOINT_TRACE",
    }
)
"""Variables of the client and of tests, which may stand in the same environment."""
JOB_PREFIXES = (
    "GPUPLANE_JOB_",
    "GPUPLANE_ATTEMPT",
    "GPUPLANE_ARRAY_",
    "GPUPLANE_MOUNT_",
    "GPUPLANE_OUTPUTS",
    "GPUPLANE_PROGRESS",
    "GPUPLANE_CHECKPOINT",
    "GPUPLANE_SEED",
    "GPUPLANE_WORKSPACE",
    "GPUPLANE_TEST_",
)
"""What a job is told; a control plane started inside a job sees them too."""
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


@dataclass(frozen=True, slots=True)
class Described:
    """One setting as documented."""

    variable: str
    default: str
    unit: str
    reason: str
    values: str
    """What it may be: `0..100`, or the words; empty where only its form is prescribed."""


def describe_settings() -> list[Described]:
    """Return every setting with its variable, default, unit, reason and bounds, in order."""
    rows = []
    for path, each in _leaves(Settings):
        default = each.default
        rows.append(
            Described(
                _variable(path), json.dumps(default) if isinstance(default, bool) else str(default),
                each.metadata["unit"], each.metadata["reason"], _values_of(each),
            )
        )  # fmt: skip
    return rows


def load_settings(environment: Mapping[str, str], **overrides: Any) -> Settings:
    """Return the settings that an environment and the command line make.

    Raises:
        SettingsError: If a variable is unknown or its value cannot hold.
    """
    known = {_variable(path): (path, each) for path, each in _leaves(Settings)}
    values: dict[tuple[str, ...], Any] = {}
    for name, text in environment.items():
        if not name.startswith(PREFIX) or name in NOT_SETTINGS or name.startswith(JOB_PREFIXES):
            continue
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise SettingsError(
                f"{name} is no setting.{hint} `gpuplane up --settings` lists them all."
            )
        path, each = known[name]
        values[path] = _parse(name, text, each)
    for name, value in overrides.items():
        if value is not None:
            values[(name,)] = value
    built = _build(Settings, (), values)
    try:
        home = Path(built.home).expanduser().resolve()
    except RuntimeError as error:
        raise SettingsError(
            f"GPUPLANE_HOME={str(built.home)!r} is no folder: {error}. Write its whole path."
        ) from error
    return _checked(dataclasses.replace(built, home=home))


def _checked(settings: Settings) -> Settings:
    for path, each in _leaves(Settings):
        value: Any = settings
        for name in path:
            value = getattr(value, name)
        _check_value(_variable(path), value, each)
    scheme = settings.sql_url.split(":", 1)[0]
    if scheme not in ("sqlite", "postgresql", "postgresql+psycopg"):
        raise SettingsError(
            f"GPUPLANE_DATABASE_URL starts with {scheme!r}; use sqlite:///PATH or postgresql://…"
        )
    _check_endpoint(settings.telemetry.otlp_endpoint)
    return settings


def _check_endpoint(url: str) -> None:
    """Refuse an endpoint to which no trace could ever be sent; empty means that none are."""
    try:
        parts = urlsplit(url)
        holds = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        holds = False
    if url and not (holds and url.isascii() and url.isprintable() and " " not in url):
        raise SettingsError(
            f"GPUPLANE_TELEMETRY_OTLP_ENDPOINT={url!r} is no http or https URL. Write it like "
            "http://127.0.0.1:4318, or leave it out for no traces."
        )


def _check_value(name: str, value: Any, each: Any) -> None:
    """Refuse a number out of its bounds and a word without a meaning; `nan` lies in no bounds."""
    within, among = each.metadata["within"], each.metadata["among"]
    default = f"Leave it out for the default, {each.default}."
    if within is not None and not (within[0] <= value <= within[1]):
        raise SettingsError(
            f"{name} must lie in {_values_of(each)}, not {value} ({each.metadata['unit']}). "
            f"{default}"
        )
    if among and value not in among:
        near = difflib.get_close_matches(value, among, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise SettingsError(f"{name} must be one of {', '.join(among)}, not {value!r}.{hint} "
                            f"{default}")  # fmt: skip


def _values_of(each: Any) -> str:
    """Return what a setting may be, as people write it."""
    within = each.metadata["within"]
    if within is None:
        return ", ".join(each.metadata["among"])
    low, high = (str(bound) for bound in within)
    return f"{low}..{high}"


def _leaves(group: type, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    found: list[tuple[tuple[str, ...], Any]] = []
    for each in fields(group):
        if "unit" in each.metadata:
            found.append(((*path, each.name), each))
        else:
            found.extend(_leaves(typing.get_type_hints(group)[each.name], (*path, each.name)))
    return found


def _variable(path: tuple[str, ...]) -> str:
    return PREFIX + "_".join(path).upper()


def _parse(name: str, text: str, each: Any) -> Any:
    kind = each.type if isinstance(each.type, type) else type(each.default)
    try:
        if kind is bool:
            return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
        if kind in (int, float):
            return kind(text)
        if isinstance(each.default, Path):
            if not text.strip():  # it would be the folder one happens to stand in
                raise SettingsError(f"{name} is set and empty. Name a folder, or leave it out.")
            return Path(text)
    except (KeyError, ValueError):
        wanted = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
        raise SettingsError(f"{name}={text!r} is not {wanted} ({each.metadata['unit']}).") from None
    return text


def _build(group: Any, path: tuple[str, ...], values: Mapping[tuple[str, ...], Any]) -> Any:
    hints = typing.get_type_hints(group)
    arguments: dict[str, Any] = {}
    for each in fields(group):
        here = (*path, each.name)
        if "unit" not in each.metadata:
            arguments[each.name] = _build(hints[each.name], here, values)
        elif here in values:
            arguments[each.name] = values[here]
    return group(**arguments)


EMPTY: Mapping[str, str] = types.MappingProxyType({})
"""An environment without any setting."""
