"""The small types that bodies of jobs are made of: numbers within named limits, paths, names."""

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema

from gpuplane.core.hardware import find_model, find_models, nearest_models
from gpuplane.kit.bodies import refusal
from gpuplane.kit.problems import nearest

MAX_GPUS = 1_024
"""GPUs of one replica; no node has more."""
MAX_REPLICAS = 10_000
MAX_CPU_CORES = 4_096
MAX_MEMORY_GB = 65_536
MAX_STORAGE_GB = 1_048_576
MAX_EPHEMERAL_GB = 1_024
"""Kubernetes refuses more ephemeral storage than nodes have; 1 TiB is the product's limit."""
MAX_DURATION_S = 315_360_000
"""Ten years: a longer run is a service, which has no duration."""
MAX_ARRAY = 1_000_000
MAX_RETRIES = 100
MAX_ITEMS = 1_000
MAX_TRIGGERS = 5
"""Of one service: an autoscaler asks each of them, again and again."""
MAX_TRIGGER_KEYS = 20
MAX_TRIGGER_CHARS = 1_000
MAX_TEXT = 32_768
"""Characters of one environment value, argument or line of a simulated log."""
MAX_ENV = 1_000
MAX_CHART_VALUES = 65_536
"""Characters of a chart's values as JSON: they lie with the job and on its release."""
MAX_AFTER = 1_000
MAX_DATA = 100
"""Data sets one job names: each is a column over the nodes."""

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
_RESERVED_ENV = ("GPUPLANE_", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_CLOCK = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")
_PLAIN = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_. ]{0,98}[A-Za-z0-9])?")
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


def _check_printable(value: str) -> str:
    if "\x00" in value:
        raise refusal("Text must not contain the NUL character.", "Remove it.")
    return value


def _check_inside(value: str) -> str:
    """Refuse what leads out of the job's own folder."""
    _check_printable(value)
    if value.startswith(("/", "~")) or "\\" in value or ":" in value:
        raise refusal(
            f"{value[:100]!r} is not a path inside the job's working directory.",
            "Write it relative to the working directory, such as 'out/model.pt'.",
        )
    return _check_no_parent(value)


def _check_absolute(value: str) -> str:
    """Refuse what is not a plain absolute path inside the job."""
    _check_printable(value)
    if not value.startswith("/") or value == "/" or "//" in value or "\\" in value:
        raise refusal(
            f"{value[:100]!r} is not an absolute path inside the job.",
            "Begin it with '/', such as '/data'.",
        )
    return _check_no_parent(value)


def _check_no_parent(value: str) -> str:
    if ".." in value.split("/"):
        raise refusal("A path must not contain '..'.", "Name the place itself.")
    return value


def _check_url_path(value: str) -> str:
    if value and not value.startswith("/"):
        raise refusal("A health path begins with '/'.", "For example '/health'.")
    if not value.isprintable() or " " in value:
        raise refusal("A health path is plain printable text.", "For example '/health'.")
    return _check_no_parent(value)


def _check_gpu(value: str) -> str:
    if not find_models(value):
        close = ", ".join(nearest_models(value[:100]))
        raise refusal(
            f"There is no GPU model {value[:100]!r} known here.", f"Nearest names: {close}."
        )
    model = find_model(value)
    return model.name if model is not None else value


def _check_env_names(env: dict[str, str]) -> dict[str, str]:
    for name, value in env.items():
        if not _ENV_NAME.fullmatch(name):
            raise refusal(
                f"{name[:100]!r} is not a name of an environment variable.",
                "Use letters, digits and '_', not beginning with a digit.",
            )
        if name.startswith(_RESERVED_ENV):
            raise refusal(
                f"{name[:100]} is set by the control plane for each replica.",
                "Leave it out, or use another name.",
            )
        if "\x00" in value:
            raise refusal(f"The value of {name} contains the NUL character.", "Remove it.")
    return env


def _check_env_name(value: str) -> str:
    if value:
        _check_env_names({value: ""})
    return value


def _check_digest(value: str) -> str:
    if not _DIGEST.fullmatch(value):
        raise refusal(
            "A workspace digest is 64 lower-case hexadecimal digits.",
            "Upload the working directory with POST /api/v1/workspaces and use its digest.",
        )
    return value


def _read_clock(value: object) -> int:
    match = _CLOCK.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise refusal("A time of day is written as HH:MM, from 00:00 to 23:59.", "Such as '22:00'.")
    return int(match[1]) * 60 + int(match[2])


def _read_day(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 7:
        return value
    if isinstance(value, str) and value.lower()[:3] in DAYS and value.isalpha():
        return DAYS.index(value.lower()[:3]) + 1
    text = value[:20] if isinstance(value, str) else ""
    raise refusal(
        "A weekday is mon, tue, wed, thu, fri, sat or sun, or 1 (Monday) to 7.",
        nearest(text, DAYS) if text else "Write it as 'mon'.",
    )


def clock_text(minute: int) -> str:
    """Return a minute of the day as HH:MM."""
    return f"{minute // 60:02d}:{minute % 60:02d}"


def day_text(day: int) -> str:
    """Return an ISO weekday as its short name."""
    return DAYS[day - 1]


def _check_plain(value: str) -> str:
    if value and not _PLAIN.fullmatch(value):
        raise refusal(
            "This is up to 100 letters, digits, '-', '_', '.' and blanks, beginning and ending "
            "with a letter or digit.",
            "For example 'research-42'.",
        )
    return value


PrintableText = Annotated[str, Field(max_length=MAX_TEXT), AfterValidator(_check_printable)]
InsidePath = Annotated[str, Field(max_length=1_024), AfterValidator(_check_inside)]
AbsolutePath = Annotated[str, Field(max_length=1_024), AfterValidator(_check_absolute)]
UrlPath = Annotated[str, Field(max_length=1_024), AfterValidator(_check_url_path)]
PlainText = Annotated[str, Field(max_length=100), AfterValidator(_check_plain)]
GpuType = Annotated[
    str,
    Field(max_length=200, description="A GPU model in any spelling."),
    AfterValidator(_check_gpu),
]
EnvName = Annotated[str, Field(max_length=255), AfterValidator(_check_env_name)]
Environment = Annotated[
    dict[str, Annotated[str, Field(max_length=MAX_TEXT)]],
    Field(max_length=MAX_ENV),
    AfterValidator(_check_env_names),
]
Digest = Annotated[
    str,
    AfterValidator(_check_digest),
    WithJsonSchema({"type": "string", "pattern": "^[0-9a-f]{64}$"}),
]
TimeOfDay = Annotated[
    int,
    BeforeValidator(_read_clock),
    PlainSerializer(clock_text, return_type=str),
    WithJsonSchema({"type": "string", "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$"}),
]
Weekday = Annotated[
    int,
    BeforeValidator(_read_day),
    PlainSerializer(day_text, return_type=str),
    WithJsonSchema({"type": "string", "enum": list(DAYS)}),
]

GpuCount = Annotated[int, Field(strict=True, ge=0, le=MAX_GPUS)]
GpuShare = Annotated[
    float, Field(strict=True, gt=0, le=1, allow_inf_nan=False, description="Share of one GPU.")
]
Cores = Annotated[float, Field(strict=True, ge=0, le=MAX_CPU_CORES, allow_inf_nan=False)]
MemoryGb = Annotated[
    float, Field(strict=True, ge=0, le=MAX_MEMORY_GB, allow_inf_nan=False, description="GiB.")
]
GpuMemoryGb = Annotated[
    float, Field(strict=True, gt=0, le=10_000, allow_inf_nan=False, description="GiB per GPU.")
]
StorageGb = Annotated[int, Field(strict=True, ge=0, le=MAX_STORAGE_GB, description="GiB.")]
EphemeralGb = Annotated[
    float, Field(strict=True, ge=0, le=MAX_EPHEMERAL_GB, allow_inf_nan=False, description="GiB.")
]
Seconds = Annotated[int, Field(strict=True, ge=1, le=MAX_DURATION_S, description="Seconds.")]
SecondsFromZero = Annotated[int, Field(strict=True, ge=0, le=MAX_DURATION_S)]
FloatSeconds = Annotated[
    float, Field(strict=True, ge=0, le=MAX_DURATION_S, allow_inf_nan=False, description="Seconds.")
]
Ratio = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
Replicas = Annotated[int, Field(strict=True, ge=1, le=MAX_REPLICAS)]
ReplicasFromZero = Annotated[int, Field(strict=True, ge=0, le=MAX_REPLICAS)]
Port = Annotated[int, Field(strict=True, ge=0, le=65_535)]
Retries = Annotated[int, Field(strict=True, ge=0, le=MAX_RETRIES)]
