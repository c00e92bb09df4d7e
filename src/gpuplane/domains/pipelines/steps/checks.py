"""What only the server knows of a step that is saved: providers, channels, a job's own fields."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuplane.domains.pipelines.documents.configs import (
    ApiCallConfig,
    FunctionConfig,
    JobConfig,
    NotificationConfig,
    config_of,
)
from gpuplane.domains.pipelines.documents.models import EventTrigger, Step, Trigger
from gpuplane.domains.pipelines.rules import HOW_TO_SET_UP
from gpuplane.domains.pipelines.steps.calling import target_problem
from gpuplane.domains.pipelines.steps.deploying import asked_of, complete, provider_refusal
from gpuplane.domains.pipelines.steps.tools import StepTools
from gpuplane.kit.errors import FieldError, ProductError


def make_check(tools: StepTools) -> Callable[[Step], Sequence[FieldError]]:
    """Return what finds a step's mistakes that only this server knows."""

    def check(step: Step) -> Sequence[FieldError]:
        config = config_of(step.step_type, step.config)
        match config:
            case JobConfig():
                return list(_check_job(config, tools))
            case NotificationConfig():
                return list(_check_channel(config, tools))
            case ApiCallConfig():
                return list(_check_call(config, tools))
            case FunctionConfig(network=True) if not tools.function_network:
                return [
                    FieldError(
                        "config.network",
                        "The server grants no network to functions.",
                        "Use an API_CALL step, or set GPUPLANE_PIPELINES_NETWORK.",
                    )
                ]
        return []

    return check


def make_trigger_check(tools: StepTools) -> Callable[[Trigger], Sequence[FieldError]]:
    """Return what finds a trigger's mistakes that only this server knows."""

    def check(trigger: Trigger) -> Sequence[FieldError]:
        if not isinstance(trigger, EventTrigger):
            return []
        if trigger.folder is not None and not is_allowed(trigger.folder.path, tools.folders):
            return [
                FieldError(
                    "folder.path",
                    "The server lets triggers look into no such folder.",
                    "Have GPUPLANE_PIPELINES_FOLDERS name it or one above it.",
                )
            ]
        if trigger.bucket is not None and trigger.bucket.endpoint is not None:
            problem = target_problem(tools, trigger.bucket.endpoint)
            if problem is not None:
                return [FieldError("bucket.endpoint", problem, "Use another address.")]
        return []

    return check


def is_allowed(path: str, roots: Sequence[str]) -> bool:
    """Return whether a folder is one of those that triggers may look into, or in one of them."""
    folder = Path(path).resolve()
    return any(folder.is_relative_to(Path(root).resolve()) for root in roots)


def _check_job(config: JobConfig, tools: StepTools) -> Iterator[FieldError]:
    spec = config.spec if isinstance(config.spec, dict) else {}
    reason = provider_refusal(config, spec, tools)
    if reason is not None:
        field = "component_ref" if config.component_ref is not None else "deployment_type"
        field = "optimize_with_budsim" if config.optimize_with_budsim is True else field
        yield FieldError(f"config.{field}", reason, "")
        return
    if isinstance(config.spec, str) or "{{" in (config.component_ref or ""):
        return
    given = asked_of(config)
    known, is_whole = _without_expressions(complete(config, spec, given, tools))
    try:
        tools.read_job({"name": "step", **known})
    except ProductError as refusal:
        errors = refusal.errors or (FieldError(refusal.field or "", refusal.detail, refusal.fix),)
        # What an expression will give may be all that is missing.
        for error in errors:
            if is_whole or (refusal.errors and error.reason != "This field is required."):
                yield FieldError(f"config.{error.field}".rstrip("."), error.reason, error.fix)


def _without_expressions(body: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return a body without what an expression will give, and whether that is all of it."""
    kept: dict[str, Any] = {}
    whole = True
    for name, value in body.items():
        if isinstance(value, Mapping):
            kept[name], inner = _without_expressions(value)
            whole = whole and inner
        elif _has_expression(value):
            whole = False
        else:
            kept[name] = value
    return kept, whole


def _has_expression(value: Any) -> bool:
    if isinstance(value, str):
        return "{{" in value
    if isinstance(value, list):
        return any(map(_has_expression, value))
    return isinstance(value, Mapping) and any(map(_has_expression, value.values()))


def _check_channel(config: NotificationConfig, tools: StepTools) -> Iterator[FieldError]:
    if "{{" in config.channel or config.channel in tools.catalogue.channels:
        return
    if not tools.channels.has(config.channel):
        yield FieldError(
            "config.channel",
            f"The channel {config.channel} is not set up on this server.",
            HOW_TO_SET_UP[config.channel],
        )
    if config.channel in ("webhook", "email") and not config.recipients:
        yield FieldError("config.recipients", f"{config.channel} needs recipients.", "Name one.")
    if config.channel == "webhook" and isinstance(config.recipients, list):
        for place, url in enumerate(config.recipients):
            problem = None if "{{" in url else target_problem(tools, url)
            if problem is not None:
                yield FieldError(f"config.recipients[{place}]", problem, "Use another address.")


def _check_call(config: ApiCallConfig, tools: StepTools) -> Iterator[FieldError]:
    if "{{" in config.url:
        return
    problem = target_problem(tools, config.url)
    if problem is not None:
        yield FieldError(
            "config.url",
            problem,
            "Use an address outside, or have GPUPLANE_PIPELINES_ALLOWED_HOSTS name the host.",
        )
