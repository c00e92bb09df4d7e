"""An API server that keeps objects: it lists, applies, patches and deletes what a test put there.

What a test says is refused; nothing of Kueue runs behind it.
"""

from __future__ import annotations

import copy
from typing import Any

from gpuplane.kube import kinds
from gpuplane.kube.kinds import Kind
from tests.integration.kube.scripted import Reply, Request, Stream

Object = dict[str, Any]
PLURALS = {each.plural for each in vars(kinds).values() if isinstance(each, Kind)}
KUEUE = "/apis/kueue.x-k8s.io"


class Stored:
    """The objects by their path, what is refused, and what was deleted in its order."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.refused: dict[tuple[str, str], Reply] = {}
        self.unserved: set[str] = set()
        self.deleted: list[str] = []
        self.applied: list[str] = []

    def put(self, kind: Kind, obj: Object) -> None:
        metadata = obj["metadata"]
        path = kind.path(metadata.get("namespace"), metadata["name"])
        made = {"apiVersion": kind.api_version, "kind": kind.kind, **copy.deepcopy(obj)}
        made["metadata"].setdefault("uid", path)
        self.objects[path] = made

    def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object | None:
        return self.objects.get(kind.path(namespace, name))

    def refuse(self, method: str, path: str, reply: Reply) -> None:
        self.refused[method, path] = reply

    def __call__(self, request: Request) -> Reply | Stream:
        refusal = self.refused.get((request.method, request.path))
        if refusal is not None:
            return refusal
        if request.path == KUEUE:
            version = {"groupVersion": "kueue.x-k8s.io/v1beta2", "version": "v1beta2"}
            return Reply(body={"versions": [version], "preferredVersion": version})
        if request.method == "GET":
            return self._read(request)
        if request.method == "DELETE":
            self.deleted.append(request.path)
            return Reply(body={}) if self.objects.pop(request.path, None) else _absent()
        path = request.path.removesuffix("/status")
        found = self.objects.get(path)
        if "apply" not in request.headers["content-type"] and found is None:
            return _absent()
        if "apply" in request.headers["content-type"]:
            self.applied.append(path)
        merged = merge(found or {}, request.json)
        merged["metadata"].setdefault("uid", path)
        self.objects[path] = merged
        return Reply(body=merged)

    def _read(self, request: Request) -> Reply | Stream:
        if request.path in self.objects:
            return Reply(body=self.objects[request.path])
        plural = request.path.rsplit("/", 1)[-1]
        if plural not in PLURALS or plural in self.unserved:
            return _absent()
        if request.param("watch"):
            return Stream()
        base = request.path.rsplit("/", 1)[0]
        wanted = dict(
            pair.split("=") for pair in (request.param("labelSelector") or "").split(",") if pair
        )
        items = [
            each
            for path, each in sorted(self.objects.items())
            if path.startswith(base + "/")
            and path.split("/")[-2] == plural
            and (each["metadata"].get("labels") or {}).items() >= wanted.items()
        ]
        return Reply(body={"items": items, "metadata": {"resourceVersion": "1"}})


def conflict(field: str, manager: str) -> Reply:
    """Return the answer to an apply of a field that another manager owns."""
    cause = {
        "reason": "FieldManagerConflict",
        "message": f'conflict with "{manager}" using v1',
        "field": field,
    }
    return Reply(409, {"reason": "Conflict", "message": "conflict", "details": {"causes": [cause]}})


def _absent() -> Reply:
    return Reply(404, {"reason": "NotFound", "message": "not found"})


def merge(old: Any, patch: Any) -> Any:
    """Return what a JSON merge patch (RFC 7386) makes of a value."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    made = dict(old) if isinstance(old, dict) else {}
    for name, each in patch.items():
        if each is None:
            made.pop(name, None)
        else:
            made[name] = merge(made.get(name), each)
    return made
