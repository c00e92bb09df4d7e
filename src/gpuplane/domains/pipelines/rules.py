"""Pipelines as values, and the pure facts about them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from uuid import UUID

from gpuplane.core.ids import ProjectId, TenantId, UserId


class PipelineStatus(StrEnum):
    """Whether a pipeline starts runs."""

    ACTIVE = "active"
    ARCHIVED = "archived"


@dataclass(frozen=True, slots=True)
class PipelineRecord:
    """One pipeline as stored; its document is that of its newest version."""

    id: UUID
    tenant_id: TenantId
    project_id: ProjectId
    name: str
    status: PipelineStatus
    labels: Mapping[str, str]
    version_number: int
    step_count: int
    created_by: str
    created_at: int
    updated_at: int
    version: int


@dataclass(frozen=True, slots=True)
class Version:
    """One immutable version of a pipeline's document."""

    pipeline_id: UUID
    number: int
    document: Mapping[str, Any]
    digest: str
    step_count: int
    created_by: str
    user_id: UserId
    created_at: int
    rolled_back_from: int | None
    may_critical: bool


@dataclass(frozen=True, slots=True)
class TriggerRecord:
    """One trigger as stored; `state` is what it remembers between firings."""

    id: UUID
    pipeline_id: UUID
    tenant_id: TenantId
    project_id: ProjectId
    kind: str
    digest: str
    spec: Mapping[str, Any]
    upstream: str | None
    due_at: int | None
    state: Any
    problem: str
    version: int


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What components, models and services a server knows, from the file its settings name.

    Args:
        components: Name → body of the job that a `component_ref` stands for.
        models: Name of a model, `*` for every other → body of the job that serves it.
        services: Host → answers of a stand-in: path → what is answered.
        channels: Channels that a stand-in takes: messages are kept with the step alone.
    """

    components: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    services: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    channels: frozenset[str] = frozenset()

    def model(self, name: str) -> Mapping[str, Any] | None:
        """Return the body of the job that serves a model."""
        return self.models.get(name, self.models.get("*"))


@dataclass(frozen=True, slots=True)
class Channels:
    """Where notifications go; an empty text is a channel that is not set up."""

    slack_url: str = ""
    pagerduty_key: str = field(default="", repr=False)
    pagerduty_url: str = "https://events.pagerduty.com/v2/enqueue"
    has_mail: bool = False

    def has(self, channel: str) -> bool:
        """Return whether a channel is set up; webhooks carry their own address."""
        return {
            "slack": bool(self.slack_url),
            "pagerduty": bool(self.pagerduty_key),
            "email": self.has_mail,
            "webhook": True,
        }.get(channel, False)


HOW_TO_SET_UP = {
    "slack": "Set GPUPLANE_PIPELINES_SLACK_URL to an incoming webhook.",
    "pagerduty": "Set GPUPLANE_PIPELINES_PAGERDUTY_KEY to an integration key.",
    "email": "Set GPUPLANE_PIPELINES_SMTP_URL and GPUPLANE_PIPELINES_MAIL_FROM.",
}


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return one object laid over another, objects inside them too."""
    merged = dict(base)
    for key, value in over.items():
        known = merged.get(key)
        both = isinstance(known, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(known, value) if both else value  # type: ignore[arg-type]  # both says so
    return merged


def diff_documents(old: Any, new: Any, path: str = "") -> list[dict[str, Any]]:
    """Return what differs between two documents: path, old and new value of each."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        found: list[dict[str, Any]] = []
        for key in dict.fromkeys([*old, *new]):
            inner = f"{path}.{key}" if path else str(key)
            if key not in new:
                found.append({"path": inner, "kind": "removed", "old": old[key], "new": None})
            elif key not in old:
                found.append({"path": inner, "kind": "added", "old": None, "new": new[key]})
            else:
                found += diff_documents(old[key], new[key], inner)
        return found
    if isinstance(old, list) and isinstance(new, list):
        return _diff_lists(old, new, path)
    if old == new and type(old) is type(new):
        return []
    return [{"path": path, "kind": "changed", "old": old, "new": new}]


def _diff_lists(old: list[Any], new: list[Any], path: str) -> list[dict[str, Any]]:
    """Return what differs between two lists; steps are told apart by their ids."""
    if all(isinstance(each, Mapping) and "id" in each for each in [*old, *new]) and (old or new):
        return [
            {**each, "path": path + each["path"].removeprefix("_.")}
            for each in diff_documents(
                {f"[{each['id']}]": each for each in old},
                {f"[{each['id']}]": each for each in new},
                "_",
            )
        ]
    if old == new:
        return []
    return [{"path": path, "kind": "changed", "old": old, "new": new}]
