"""What an import answers: the pipeline, and one row for each feature of the source."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

MAX_ROWS = 10_000


class Verdict(StrEnum):
    """What became of a feature.

    MAPPED: the pipeline does the same. LEFT_OUT: it does without, and ends with the same outputs.
    REFUSED: it cannot do the same, so there is no pipeline.
    """

    MAPPED = "mapped"
    LEFT_OUT = "left out"
    REFUSED = "refused"


class SourceKind(StrEnum):
    """What a document is."""

    KUBEFLOW = "Kubeflow Pipelines"
    ARGO = "Argo Workflows"
    OURS = "gpuplane"
    UNKNOWN = "unknown"


class Containers(StrEnum):
    """How containers of the source become jobs.

    DOCKER: as containers of the same image, on clusters that run containers. PROCESS: as processes
    of the machine itself, without the image: for trying a source out where no containers run.
    """

    DOCKER = "docker"
    PROCESS = "process"


@dataclass(frozen=True, slots=True)
class Row:
    """One feature.

    Args:
        place: Where it stands in the source, such as `root.dag.tasks.train`.
        feature: What the source calls it.
        verdict: What became of it.
        reason: How it was mapped, or why not; one sentence.
    """

    place: str
    feature: str
    verdict: Verdict
    reason: str


@dataclass(frozen=True, slots=True)
class ImportResult:
    """What an import found.

    Args:
        kind: Of the source.
        document: The pipeline as a manifest; None if anything was refused.
        rows: Each feature, in the order of the source.
    """

    kind: SourceKind
    document: Mapping[str, Any] | None
    rows: tuple[Row, ...] = ()

    @property
    def refusals(self) -> tuple[Row, ...]:
        """Return what stands against a pipeline."""
        return tuple(row for row in self.rows if row.verdict is Verdict.REFUSED)


class Malformed(Exception):
    """The source is not what it says it is, at this place."""

    def __init__(self, place: str, reason: str) -> None:
        """Name the place and what is wrong there."""
        super().__init__(place, reason)
        self.place, self.reason = place, reason


@dataclass(slots=True)
class Table:
    """Collects rows; the same row twice is one."""

    rows: dict[tuple[str, str, str], Row] = field(default_factory=dict)

    def add(self, place: str, feature: str, verdict: Verdict, reason: str) -> None:
        """Note a feature."""
        key = (place, feature, reason)
        if key not in self.rows and len(self.rows) < MAX_ROWS:
            self.rows[key] = Row(place, feature, verdict, reason)

    def mapped(self, place: str, feature: str, reason: str) -> None:
        """Note that the pipeline does the same."""
        self.add(place, feature, Verdict.MAPPED, reason)

    def left_out(self, place: str, feature: str, reason: str) -> None:
        """Note what the pipeline does without."""
        self.add(place, feature, Verdict.LEFT_OUT, reason)

    def refused(self, place: str, feature: str, reason: str) -> None:
        """Note what stands against a pipeline; kept even in a full table."""
        name = feature or "(a field without a name)"
        self.rows[(place, name, reason)] = Row(place, name, Verdict.REFUSED, reason)

    def result(self, kind: SourceKind, document: Mapping[str, Any] | None) -> ImportResult:
        """Return the answer; without a document if anything was refused."""
        rows = tuple(self.rows.values())
        is_refused = any(row.verdict is Verdict.REFUSED for row in rows)
        return ImportResult(kind, None if is_refused else document, rows)
