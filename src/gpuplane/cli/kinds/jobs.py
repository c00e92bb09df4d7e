"""Kind Job: submitted once for each name and content.

The idempotency key is made from the name, the project's id and the digest of the content, so
applying again finds the job; a job of that name in another project is another job. A job is
immutable but for its priority: other content ends an unfinished one and submits the new.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from gpuplane.cli.client import Client
from gpuplane.cli.errors import ApiError, CliError
from gpuplane.cli.kinds.changes import Action, Change, Difference, differences_of
from gpuplane.cli.lookups import OVER, find_job_exactly, is_uuid
from gpuplane.cli.manifests import Document
from gpuplane.cli.ownership import Owner, owner_of
from gpuplane.cli.plans import plan_lines

KEY_HEX = 32
RUN = "run"
"""The group of a manifest that says what runs: the API's own name, `spec`, would stand twice."""


def plan_job(client: Client, document: Document, others: Sequence[Document]) -> Change:
    """Return what a manifest of a job would change."""
    body = _body(client, document)
    owner = _owner(client, document, body)
    body.update(owner.fields())
    return replace(_change(client, document, others, owner, body), elsewhere=owner.elsewhere)


def _change(
    client: Client,
    document: Document,
    others: Sequence[Document],
    owner: Owner,
    body: dict[str, Any],
) -> Change:
    key = key_of(body)
    body["idempotency_key"] = key
    found = _find(client, document, owner, body)
    if found is not None and found["idempotency_key"] == key:
        return Change(document, Action.UNCHANGED, notes=[f"{found['status']}, {found['id']}"])
    _check_after(client, document, others, owner)
    notes = _plan(client, document, body)
    if found is None or (found["status"] in OVER and not _was_applied(found)):
        return Change(document, Action.CREATE, (),
                      lambda: _submit(client, document, owner, body), notes)  # fmt: skip
    shown = {name: each for name, each in body.items() if name not in ("idempotency_key", "after")}
    differ = differences_of(shown, _comparable(found))
    is_one = found["array"] is None
    if is_one and [each.field for each in differ] == ["priority"] and found["status"] not in OVER:
        return Change(document, Action.CHANGE, differ,
                      lambda: _change_priority(client, found, body["priority"]))  # fmt: skip
    differ = differ or [Difference("(content)", "another", "this")]
    if found["status"] in OVER:
        return Change(document, Action.CREATE, differ,
                      lambda: _submit(client, document, owner, body), notes)  # fmt: skip
    return Change(document, Action.REPLACE, differ,
                  lambda: _replace(client, document, owner, found, body), notes)  # fmt: skip


def key_of(body: Mapping[str, Any]) -> str:
    """Return the idempotency key of a job's content."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), default=str)
    return f"apply-{body['name']}-{hashlib.sha256(text.encode()).hexdigest()[:KEY_HEX]}"


def _body(client: Client, document: Document) -> dict[str, Any]:
    document.check_metadata("labels", "project", "tenant")
    spec = dict(document.spec)
    for name in ("name", "labels", "project", "idempotency_key"):
        if name in spec:
            where = "It is made from the content." if name == "idempotency_key" else (
                f"Write it as metadata.{name}.")  # fmt: skip
            raise document.error(f"{name} does not belong into spec.", field=f"spec.{name}",
                                 fix=where)  # fmt: skip
    run = spec.pop(RUN, None)
    if run is not None and not isinstance(run, dict):
        raise document.error("run is no mapping.", field=f"spec.{RUN}")
    body: dict[str, Any] = {"name": document.name, **spec}
    if run is not None:
        body["spec"] = _run(document, dict(run))
    if "labels" in document.metadata:
        body["labels"] = document.metadata["labels"]
    return body


def _owner(client: Client, document: Document, body: dict[str, Any]) -> Owner:
    """Return the project that a job lies in; what the body says of it is taken out.

    Raises:
        CliError: If a tenant or project is named twice, or there is no such tenant.
    """
    named: dict[str, str | None] = {}
    for name in ("tenant", "project"):
        by_id = body.pop(f"{name}_id", None)
        if by_id is not None and name in document.metadata:
            raise document.error(f"Both metadata.{name} and {name}_id are given.",
                                 field=f"spec.{name}_id", fix="Give one of them.")  # fmt: skip
        wanted = document.metadata.get(name) if by_id is None else by_id
        named[name] = None if wanted is None else str(wanted)
    project = named["project"] or client.target.project
    return owner_of(client, tenant=named["tenant"], project=project)


def _run(document: Document, run: dict[str, Any]) -> dict[str, Any]:
    run.pop("workdir", None)
    folder = _folder(document)
    if folder is not None:
        from gpuplane.cli.snapshots import pack

        snapshot = pack(folder)
        snapshot.archive.close()
        run["workspace_digest"] = snapshot.digest
    return run


def _folder(document: Document) -> Path | None:
    """Return the working directory that a manifest names, relative to its own file."""
    run = document.spec.get(RUN)
    named = run.get("workdir") if isinstance(run, dict) else None
    if named is None:
        return None
    path = (document.folder / str(named)).resolve()
    if not path.is_dir():
        raise document.error(f"There is no folder {path}.", field=f"spec.{RUN}.workdir")
    return path


def _find(
    client: Client, document: Document, owner: Owner, body: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the project's job of this name that was applied last, else the unfinished one.

    An array stands for all its jobs: the first of them, which holds the key, under the array's
    name, and over only if every one is.
    """
    name = f"{document.name}-0" if body.get("array") else document.name
    listed = client.items("/jobs", name=name, **owner.query())
    # They come by name, so those of this very name stand before those that only begin with it.
    named = takewhile(lambda row: row["name"] == name, listed)
    rows = [row for row in named if owner.has(row)]
    if body.get("array"):
        rows = [_as_array(client, document.name, row) for row in rows if row["array_index"] == 0]
    rows.sort(key=lambda row: (row["status"] not in OVER, row["created_at"]))
    if not rows:
        return None
    by_key = [{**client.get(f"/jobs/{row['id']}"), **_told(row)} for row in rows[-5:]]
    same = [job for job in by_key if job["idempotency_key"] == body["idempotency_key"]]
    return dict((same or by_key)[-1])


def _as_array(client: Client, name: str, first: Mapping[str, Any]) -> dict[str, Any]:
    each = list(client.items("/jobs", array_id=first["array_id"], limit=500))
    unfinished = [job["status"] for job in each if job["status"] not in OVER]
    return {**first, "name": name, "status": (unfinished or [first["status"]])[0]}


def _told(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": row["name"], "status": row["status"]}


def _was_applied(job: Mapping[str, Any]) -> bool:
    return str(job["idempotency_key"] or "").startswith("apply-")


def _comparable(job: Mapping[str, Any]) -> dict[str, Any]:
    return {**job, "cluster": job["cluster"], "spec": job["spec"]}


def _plan(client: Client, document: Document, body: dict[str, Any]) -> list[str]:
    """Return the plan's lines; this is also where the server checks every field."""
    asked = {name: each for name, each in body.items() if name != "after"}
    if "workspace_digest" in body.get("spec", {}):
        # It is sent when the job is: showing a difference sends nothing.
        run = {name: each for name, each in body["spec"].items() if name != "workspace_digest"}
        asked["spec"] = run
    try:
        return [line.strip() for line in plan_lines(client.post("/jobs/estimate", asked))]
    except ApiError as error:
        if error.status >= 500:
            return [f"plan: unknown ({error.message})"]
        raise _placed(document, error) from error


def _submit(client: Client, document: Document, owner: Owner, body: dict[str, Any]) -> str:
    folder = _folder(document)
    if folder is not None:
        from gpuplane.cli.snapshots import upload

        upload(client, folder)
    earlier = [_after(client, owner, each) for each in body.get("after") or []]
    body = {**body, "after": earlier}
    try:
        job = client.post("/jobs", body)
    except ApiError as error:
        raise _placed(document, error) from error
    return f"{job['status']}, {job['id']}"


def _after(client: Client, owner: Owner, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job that this one comes after; `job` may name one of its project, or hold an id."""
    named = dict(entry)
    key = named.pop("job", None)
    if key is not None:
        named["job_id"] = find_job_exactly(client, str(key), **owner.query())["id"]
    return named


def check_after(
    client: Client, document: Document, others: Sequence[Document], *, is_project_new: bool
) -> None:
    """Refuse a job that is to come after one that is not there and is not made before it.

    Args:
        client: Whom to ask.
        document: The job.
        others: Everything that is applied, in its order.
        is_project_new: Whether its project is only made with it, and so has no job yet.

    Raises:
        CliError: With the place of the entry.
    """
    owner = None if is_project_new else _owner(client, document, dict(document.spec))
    _check_after(client, document, others, owner)


def _check_after(
    client: Client, document: Document, others: Sequence[Document], owner: Owner | None
) -> None:
    earlier = takewhile(lambda each: each is not document, others)
    names = {each.name for each in earlier if each.kind == document.kind}
    entries = document.spec.get("after") or []
    for place, entry in enumerate(entries if isinstance(entries, list) else [entries]):
        field = f"spec.after[{place}]"
        if not isinstance(entry, dict):
            raise document.error("An entry of after is a mapping.", field=field,
                                 fix="Write - job: NAME.")  # fmt: skip
        key = str(entry.get("job") or entry.get("job_id") or "")
        if not key or key in names:
            continue
        if key == document.name:
            raise document.error("A job cannot come after itself.", field=field)
        if owner is None and not is_uuid(key):
            raise document.error(f"No job {key!r} is made before it.", field=field,
                                 fix="Write the manifest of that job before this one.")  # fmt: skip
        try:
            find_job_exactly(client, key, **({} if owner is None else owner.query()))
        except CliError as error:
            fix = error.fix or "Write the manifest of that job before this one."
            refused = document.error(error.message, field=field, fix=fix)
            refused.code = error.code
            raise refused from error


def _change_priority(client: Client, job: Mapping[str, Any], priority: str) -> str:
    changed = client.put(f"/jobs/{job['id']}/priority", {"priority": priority})
    return f"priority {changed['priority']}"


def _replace(
    client: Client,
    document: Document,
    owner: Owner,
    old: Mapping[str, Any],
    body: dict[str, Any],
) -> str:
    # The new one first: if it is refused, the old one goes on.
    told = _submit(client, document, owner, body)
    try:
        client.delete(f"/jobs/{old['id']}", **({} if old["array"] is None else {"array": True}))
    except ApiError as error:
        if error.status != 409:  # over meanwhile
            raise
    return told


def _placed(document: Document, error: ApiError) -> ApiError:
    """Return the server's refusal with the place of the document and the manifest's field names."""
    field = error.field
    if field == "spec" or field.startswith("spec."):
        field = RUN + field.removeprefix("spec")
    error.field = f"{document.place}, Job {document.name}" + (f", spec.{field}" if field else "")
    return error
