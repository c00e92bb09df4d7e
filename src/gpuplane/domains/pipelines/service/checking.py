"""The proof that what was saved of pipelines is what was saved; every fault is a sentence."""

import json

from gpuplane.db.sessions import ReadSession
from gpuplane.domains.pipelines import repository
from gpuplane.domains.pipelines.service.saving import digest_of


def check(session: ReadSession) -> list[str]:
    """Return a sentence for each version that changed, and for each row that cannot be read."""
    faults = []
    for pipeline_id, number, text, digest in repository.walk_versions(session):
        about = f"Version {number} of pipeline {pipeline_id}"
        document = _read(text)
        if not isinstance(document, dict):
            faults.append(f"{about} has a document that cannot be read.")
        elif digest_of(document) != digest:
            faults.append(f"{about} is not what was saved.")
    for kind, key, column, text in repository.walk_texts(session):
        if _read(text) is ...:
            faults.append(f"{kind} {key} has {column} that cannot be read.")
    for pipeline_id, number in repository.list_without_version(session):
        faults.append(f"Pipeline {pipeline_id} has no version {number}, its newest.")
    return faults


def _read(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return ...
