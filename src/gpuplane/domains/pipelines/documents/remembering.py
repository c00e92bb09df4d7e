"""What was made of versions, by the digest of their document: a version never changes.

So a start neither reads nor compiles a document that was started before. Bounded by steps, for
that is what a compiled version weighs by; what was used longest ago is forgotten first.
"""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuplane.core.runs.plans import StepPlan
from gpuplane.domains.pipelines.documents.compiling import compile_pipeline
from gpuplane.domains.pipelines.documents.models import PipelineSpec
from gpuplane.domains.pipelines.documents.reading import read_pipeline

MAX_STEPS = 20_000
"""Of all that is remembered together: about 40 MB."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A version ready to be started: its head without steps, and its steps as plans."""

    name: str
    spec: PipelineSpec
    steps: tuple[StepPlan, ...]


def compile_document(document: Mapping[str, Any]) -> Compiled:
    """Return what a checked document comes to, whoever starts it with whatever parameters."""
    pipeline = read_pipeline(dict(document))
    steps = compile_pipeline(pipeline)
    return Compiled(pipeline.name, pipeline.spec.model_copy(update={"steps": []}), steps)


class Compilations:
    """Remembers compiled versions; safe to use from several threads."""

    def __init__(self, max_steps: int = MAX_STEPS) -> None:
        """Remember versions of so many steps together."""
        self._max_steps = max_steps
        self._known: OrderedDict[str, Compiled] = OrderedDict()
        self._steps = 0
        self._lock = threading.Lock()

    def find(self, digest: str) -> Compiled | None:
        """Return what is remembered of a document, or None."""
        with self._lock:
            found = self._known.get(digest)
            if found is not None:
                self._known.move_to_end(digest)
            return found

    def keep(self, digest: str, compiled: Compiled) -> None:
        """Remember a version, and forget others if there is no room."""
        if len(compiled.steps) > self._max_steps:
            return
        with self._lock:
            if digest not in self._known:
                self._known[digest] = compiled
                self._steps += len(compiled.steps)
            while self._steps > self._max_steps:
                self._steps -= len(self._known.popitem(last=False)[1].steps)
