"""Makes the body of a job from the options of `run`; what needs the server is asked for here."""

import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import click

from gpuplane.cli.client import Client
from gpuplane.cli.joboptions import fields_set, nested
from gpuplane.cli.lookups import find_exactly, find_job_exactly, is_uuid
from gpuplane.cli.parameters import parse_value

NAME_CHARS = 50
_WINDOW = re.compile(r"(\d\d:\d\d)-(\d\d:\d\d)(?:@(.+))?")
_WORD = re.compile(r"[A-Za-z0-9_./][\w./-]*")
"""What a name may be made of: a program or a file, not an option or a piece of a script."""
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def body_of(client: Client, command: Sequence[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of the job that options and a command describe, without its snapshot."""
    fields = fields_set(values)
    fields.pop("spec.workspace_digest", None)
    fields.setdefault("name", name_of(command, fields.get("spec.image")))
    if command:
        fields["spec.command"] = list(command)
    if "spec.image" in fields:
        fields.setdefault("deployment_type", "docker")
    if "resources.gpu_share" in fields and "gpu_count" not in fields:
        fields["gpu_count"] = 1
    env = dict(_env_file(values.get("env_file")))
    env.update(fields.pop("spec.env", ()))
    if env:
        fields["spec.env"] = env
    _shape(fields)
    _resolve(client, fields)
    return nested(fields)


def name_of(command: Sequence[str], image: str | None) -> str:
    """Return a name for a job: from its command or image, and a few letters of chance."""
    words = [PurePosixPath(word).stem for word in command[:3] if _WORD.fullmatch(word)]
    base = "-".join(words[:2]) or PurePosixPath((image or "job").split(":")[0]).name
    plain = re.sub(r"[^a-z0-9]+", "-", base.lower()).strip("-")[:NAME_CHARS].strip("-") or "job"
    return f"{plain}-{secrets.token_hex(3)}"


def _shape(fields: dict[str, Any]) -> None:
    """Give options that have a notation of their own the form of the body."""
    for field in ("labels", "placement.node_selector"):
        if field in fields:
            fields[field] = dict(fields[field])
    for field in ("spec.artifacts", "spec.simulated.log", "placement.data"):
        if field in fields:
            fields[field] = list(fields[field])
    if "spec.simulated.outputs" in fields:
        pairs = fields["spec.simulated.outputs"]
        fields["spec.simulated.outputs"] = {name: parse_value(text) for name, text in pairs}
    if "spec.secrets" in fields:
        fields["spec.secrets"] = [_secret(text) for text in fields["spec.secrets"]]
    if "spec.mounts" in fields:
        fields["spec.mounts"] = [_mount(text) for text in fields["spec.mounts"]]
    if "placement.tolerations" in fields:
        fields["placement.tolerations"] = [_toleration(t) for t in fields["placement.tolerations"]]
    _window(fields)


def _window(fields: dict[str, Any]) -> None:
    text = fields.pop("window", None)
    if text is None:
        if any(field.startswith("window.") for field in fields):
            raise click.UsageError("--weekdays and --at-window-end need --time-window.")
        return
    match = _WINDOW.fullmatch(text)
    if match is None:
        raise click.BadParameter(
            f"{text!r} is no window; write it like 22:00-06:00@Europe/Berlin.",
            param_hint="--time-window",
        )
    fields["window.start"], fields["window.end"] = match[1], match[2]
    fields["window.zone"] = match[3] or "UTC"
    if "window.weekdays" in fields:
        fields["window.weekdays"] = [each.strip() for each in fields["window.weekdays"].split(",")]


def _resolve(client: Client, fields: dict[str, Any]) -> None:
    """Ask the server for the ids of what is named."""
    if "tenant_id" in fields and not is_uuid(fields["tenant_id"]):
        fields["tenant_id"] = find_exactly(client, "/tenants", fields["tenant_id"], "tenant")["id"]
    if "project" not in fields and client.target.project:
        fields["project"] = client.target.project
    for field in ("placement.co_locate_with", "placement.separate_from"):
        if field in fields:
            fields[field] = [_job_id(client, key) for key in fields[field]]
    if "after" in fields:
        fields["after"] = [_after(client, key) for key in fields["after"]]


def _job_id(client: Client, key: str) -> str:
    return key if is_uuid(key) else str(find_job_exactly(client, key)["id"])


def _after(client: Client, text: str) -> dict[str, Any]:
    key, _, condition = text.partition(":")
    body: dict[str, Any] = {"job_id": _job_id(client, key)}
    if condition:
        body["condition"] = condition
    return body


def _secret(text: str) -> dict[str, Any]:
    name, _, place = text.partition(":")
    if place.startswith("@"):
        return {"name": name, "path": place[1:]}
    return {"name": name, "env": place or re.sub(r"[^A-Z0-9_]", "_", name.upper())}


def _mount(text: str) -> dict[str, Any]:
    name, colon, rest = text.partition(":")
    if not colon:
        raise click.BadParameter(
            f"{text!r} is no mount; write it like data:/data or data:/data:ro.",
            param_hint="--mount",
        )
    path = rest.removesuffix(":ro")
    return {"name": name, "path": path, "read_only": path != rest}


def _toleration(text: str) -> dict[str, Any]:
    pair, colon, effect = text.rpartition(":")
    if not colon or effect not in _EFFECTS:
        pair, effect = text, ""
    key, equals, value = pair.partition("=")
    operator = "Equal" if equals else "Exists"
    return {"key": key, "operator": operator, "value": value, "effect": effect}


def _env_file(file: Any) -> list[tuple[str, str]]:
    pairs = []
    for number, raw in enumerate(file or (), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.removeprefix("export ").partition("=")
        if not equals:
            raise click.BadParameter(
                f"Line {number} is not written as NAME=VALUE.", param_hint="--env-file"
            )
        parts = shlex.split(value) if value[:1] in "'\"" else [value]
        pairs.append((name.strip(), parts[0] if parts else ""))
    return pairs
