"""API bodies of pipelines."""

from typing import Annotated, Any
from uuid import UUID

from pydantic import Field

from gpuplane.core.imports.results import Containers
from gpuplane.domains.runs.schemas import RunOut
from gpuplane.kit.bodies import Body, Count, InstantOut

Document = dict[str, Any]
"""A manifest of kind Pipeline, or the specification's `{"pipeline": …, "steps": […]}`."""


class RunIn(Body):
    """How to start a run."""

    parameters: Annotated[dict[str, Any], Field(max_length=500)] = Field(default_factory=dict)
    version: Annotated[int, Field(strict=True, ge=1, le=2**31 - 1)] | None = None
    """The newest without it."""
    dedup_id: Annotated[str, Field(min_length=1, max_length=250)] | None = None
    """At most one run of the project has it; a second start returns the first."""


Text = Annotated[str, Field(min_length=1, max_length=8_388_608)]


class ImportIn(Body):
    """A pipeline as text: ours, compiled by Kubeflow Pipelines, or a workflow of Argo."""

    text: Text
    """YAML or JSON."""
    with_: Annotated[list[Text], Field(max_length=20, alias="with")] = Field(default_factory=list)
    """Further files with templates or config maps that the text refers to."""
    containers: Containers = Containers.DOCKER
    """Whether containers stay containers, or become processes of the machine itself."""
    name: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """Another name for the pipeline."""


class PipelineOut(Body):
    """One pipeline."""

    id: UUID
    tenant_id: UUID
    project_id: UUID
    name: str
    status: str
    """`active`, or `archived`: it starts no runs."""
    labels: dict[str, str]
    version: int
    """Number of the newest version."""
    step_count: int
    created_by: str
    created_at: InstantOut
    updated_at: InstantOut


class PipelineDetailOut(PipelineOut):
    """One pipeline with its newest document and triggers."""

    document: Document
    triggers: list["TriggerOut"]


class TriggerOut(Body):
    """One trigger."""

    id: UUID
    kind: str
    """`scheduled`, `webhook`, `folder`, `bucket` or `pipeline`."""
    due_at: InstantOut | None
    """When it is looked at next; absent for triggers that are called."""
    path: str | None
    """Where a webhook is called, and a bucket tells of new objects."""
    problem: str
    """Why its last look failed; empty when it did not."""


class VersionOut(Body):
    """One version."""

    number: int
    digest: str
    """Of the content: equal for equal content."""
    step_count: int
    created_by: str
    created_at: InstantOut
    rolled_back_from: int | None
    """Which version's content it has again."""


class VersionDetailOut(VersionOut):
    """One version with its document."""

    document: Document


class ChangeOut(Body):
    """One place in which two documents differ."""

    path: str
    kind: str
    """`added`, `removed` or `changed`."""
    old: Any
    new: Any


class SavedOut(Body):
    """What became of a document."""

    pipeline: PipelineOut
    version: int
    created: bool
    """Whether the pipeline is new."""
    changed: bool
    """Whether there is a new version; equal content makes none."""


class FeatureOut(Body):
    """One feature of a file of another system."""

    place: str
    feature: str
    verdict: str
    """`mapped`, `left out` (the outputs are the same) or `refused` (there is no pipeline)."""
    reason: str


class ImportCheckedOut(Body):
    """What a file of another system comes to."""

    kind: str
    """`gpuplane`, `Kubeflow Pipelines`, `Argo Workflows` or `unknown`."""
    accepted: bool
    rows: list[FeatureOut]
    document: Document | None
    """The pipeline as it would be saved; absent if anything was refused."""


class CheckedOut(Body):
    """A document that could be saved, and what would change."""

    name: str
    step_count: Count
    would_create: bool
    changes: list[ChangeOut]


class DiffOut(Body):
    """What differs between two versions."""

    old: int
    new: int
    changes: list[ChangeOut]


class TryLogOut(Body):
    """What one try of a step printed."""

    attempt: int
    text: str


class StepLogsOut(Body):
    """Where a step's output is: its job's, or what its function printed."""

    step: str
    job_id: UUID | None
    """Read its logs at `/jobs/{job_id}/logs`."""
    tries: list[TryLogOut]


class FiredOut(Body):
    """What a call from outside started."""

    run_id: UUID | None
    """The first run; absent when this very call had been taken before."""
    run_ids: list[UUID]
    """Of a bucket's notification one for each object that is new."""


def run_out(run: Any) -> RunOut:
    """Return a run as the API of runs shows it."""
    values = {name: getattr(run, name) for name in RunOut.model_fields}
    return RunOut(**{**values, "params": dict(run.params)})
