"""What a pod's specification means for processes: environment, volumes, command, folders.

Volumes are folders, not mounts: where a command, an argument or a variable names a mount path, the
folder's path is put in its place. So nothing is mounted, no right is needed, and two pods may use
the same mount path.
"""

from __future__ import annotations

import base64
import re
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Object = dict[str, Any]
OWNER = "uid"
MESSAGE_PATH = "/dev/termination-log"  # the API server's default
Fetch = Callable[[str], Awaitable[Object | None]]
_VARIABLE = re.compile(r"\$(\$|\((?P<name>[A-Za-z_][-A-Za-z0-9_.]*)\))")


class SpecRefused(Exception):
    """Something that the pod names is not there, or is nothing a process node can give."""


class MountRefused(SpecRefused):
    """A volume cannot be had (yet): the pod waits in ContainerCreating."""


@dataclass(frozen=True)
class Command:
    """What is run for one container.

    Attributes:
        words: Program and arguments.
        environment: All of its variables.
        folder: Its working directory.
        message: The file in which it may leave its termination message.
        log_is_message: Whether the end of its log stands for an empty message of a failure.
    """

    words: list[str]
    environment: dict[str, str]
    folder: Path
    message: Path
    log_is_message: bool = False


class PodFiles:
    """The folders of one pod: a working folder for each container, one for each volume."""

    def __init__(self, root: Path, pod: Object, fetch: Fetch) -> None:
        meta = pod["metadata"]
        self.folder = root / meta["namespace"] / meta["name"]
        self.pod = pod
        self._fetch = fetch
        self._volumes: dict[str, Path] = {}

    def take(self) -> None:
        """Make the pod's folder, without what one of its name left."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        (self.folder / OWNER).write_text(self.pod["metadata"]["uid"])

    def clear(self) -> None:
        """Remove everything of this pod, but nothing of a later one of its name."""
        owner = self.folder / OWNER
        if owner.exists() and owner.read_text() == self.pod["metadata"]["uid"]:
            shutil.rmtree(self.folder, ignore_errors=True)

    async def make_volumes(self) -> None:
        """Make a folder for each volume.

        Raises:
            MountRefused: If one names what is not there, or is of a kind that needs a mount.
        """
        for volume in self.pod["spec"].get("volumes") or []:
            folder = self.folder / "volumes" / volume["name"]
            self._volumes[volume["name"]] = await self._volume(volume, folder)

    async def _volume(self, volume: Object, folder: Path) -> Path:
        name = volume["name"]
        if "hostPath" in volume:
            return Path(volume["hostPath"]["path"])
        if "persistentVolumeClaim" in volume:
            return await self._claimed(volume["persistentVolumeClaim"]["claimName"])
        _make(folder)
        if "emptyDir" in volume or "ephemeral" in volume:
            return folder
        for kind, source in volume.items():
            if kind != "name" and not await self._fill(folder, kind, source):
                raise MountRefused(f'volume "{name}": process nodes have no {kind} volumes')
        return folder

    async def _fill(self, folder: Path, kind: str, source: Object) -> bool:
        match kind:
            case "configMap":
                data = await self._data(
                    "configmaps", source["name"], optional=source.get("optional")
                )
            case "secret":
                name = source.get("secretName") or source.get("name", "")
                data = await self._data("secrets", name, optional=source.get("optional"))
            case "downwardAPI":
                data = {item["path"]: self._item(item).encode() for item in source["items"]}
            case "projected":
                for part in source.get("sources") or []:
                    for inner, inner_source in part.items():
                        if not await self._fill(folder, inner, inner_source):
                            return False
                return True
            case "serviceAccountToken":
                return True  # the rig's pods speak to the API server with a token of their test
            case _:
                return False
        chosen = {item["key"]: item["path"] for item in source.get("items") or [] if "key" in item}
        for key, value in data.items():
            if chosen and key not in chosen:
                continue
            path = folder / chosen.get(key, key)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(value)
        return True

    def _item(self, item: Object) -> str:
        if "fieldRef" in item:
            return read_field(self.pod, item["fieldRef"]["fieldPath"])
        return "0"

    async def _claimed(self, claim_name: str) -> Path:
        claim = await self._fetch(self._path("persistentvolumeclaims", claim_name))
        if claim is None:
            raise MountRefused(f'persistentvolumeclaim "{claim_name}" not found')
        volume_name = claim["spec"].get("volumeName")
        volume = volume_name and await self._fetch(f"/api/v1/persistentvolumes/{volume_name}")
        if not volume:
            raise MountRefused(f'persistentvolumeclaim "{claim_name}" is not bound')
        source = volume["spec"].get("hostPath") or volume["spec"].get("local")
        if source is None:
            raise MountRefused(f'persistentvolume "{volume_name}" is neither hostPath nor local')
        return _make(Path(source["path"]))

    def _path(self, plural: str, name: str) -> str:
        return f"/api/v1/namespaces/{self.pod['metadata']['namespace']}/{plural}/{name}"

    async def _data(self, plural: str, name: str, *, optional: bool | None) -> dict[str, bytes]:
        found = await self._fetch(self._path(plural, name))
        if found is None:
            if optional:
                return {}
            raise MountRefused(f'{plural.removesuffix("s")} "{name}" not found')
        if plural == "secrets":
            return {key: base64.b64decode(v) for key, v in (found.get("data") or {}).items()}
        data = {key: value.encode() for key, value in (found.get("data") or {}).items()}
        binary = {key: base64.b64decode(v) for key, v in (found.get("binaryData") or {}).items()}
        return data | binary

    async def command(self, container: Object, base: dict[str, str]) -> Command:
        """Return what to run for a container.

        Raises:
            SpecRefused: If a variable's source is missing or there is no command.
        """
        environment = await self._environment(container, base)
        message = _make(self.folder / "messages") / container["name"]
        message_path = container.get("terminationMessagePath") or MESSAGE_PATH
        mounts = [*self._mounts(container), (_as_path(message_path), str(message))]

        def put_folders(text: str) -> str:
            for pattern, folder in mounts:
                text = pattern.sub(folder.replace("\\", r"\\"), text)
            return text

        environment = {name: put_folders(value) for name, value in environment.items()}
        words = [*(container.get("command") or []), *(container.get("args") or [])]
        if not container.get("command"):
            if "pause" not in container["image"]:
                raise SpecRefused(
                    f'image "{container["image"]}" is not pulled here: a process node runs the '
                    "command that the pod itself names"
                )
            words = ["sleep", "infinity"]
        words = [put_folders(_expand(word, environment)) for word in words]
        wanted = put_folders(container.get("workingDir") or "")
        folder = _folder_or(wanted, self.folder / "work" / container["name"])
        falls_back = container.get("terminationMessagePolicy") == "FallbackToLogsOnError"
        return Command(words, environment, folder, message, falls_back)

    def _mounts(self, container: Object) -> list[tuple[re.Pattern[str], str]]:
        found = []
        mounts = container.get("volumeMounts") or []
        for mount in sorted(mounts, key=lambda mount: -len(mount["mountPath"])):
            folder = self._volumes[mount["name"]]
            if mount.get("subPath"):
                folder /= mount["subPath"]
                if not folder.exists():
                    folder.mkdir(parents=True)
            found.append((_as_path(mount["mountPath"].rstrip("/")), str(folder)))
        return found

    async def _environment(self, container: Object, base: dict[str, str]) -> dict[str, str]:
        environment = dict(base)
        for source in container.get("envFrom") or []:
            for key, plural in (("configMapRef", "configmaps"), ("secretRef", "secrets")):
                if key in source:
                    reference = source[key]
                    data = await self._data(
                        plural, reference["name"], optional=reference.get("optional")
                    )
                    prefix = source.get("prefix", "")
                    environment |= {prefix + name: v.decode() for name, v in data.items()}
        for variable in container.get("env") or []:
            value = await self._value(variable, container, environment)
            if value is not None:
                environment[variable["name"]] = value
        return environment

    async def _value(
        self, variable: Object, container: Object, environment: dict[str, str]
    ) -> str | None:
        source = variable.get("valueFrom")
        if not source:
            return _expand(variable.get("value", ""), environment)
        if "fieldRef" in source:
            return read_field(self.pod, source["fieldRef"]["fieldPath"])
        if "resourceFieldRef" in source:
            return _read_resource(container, source["resourceFieldRef"])
        for key, plural in (("configMapKeyRef", "configmaps"), ("secretKeyRef", "secrets")):
            if key in source:
                reference = source[key]
                data = await self._data(
                    plural, reference["name"], optional=reference.get("optional")
                )
                if reference["key"] in data:
                    return data[reference["key"]].decode()
                if reference.get("optional"):
                    return None
                raise SpecRefused(f"couldn't find key {reference['key']} in {reference['name']}")
        raise SpecRefused(f"variable {variable['name']} has a source that is not known here")


def _as_path(path: str) -> re.Pattern[str]:
    """Return what finds a path in a text, but not a longer name that begins or ends with it."""
    return re.compile(rf"(?<![\w./-]){re.escape(path)}(?![\w.-])")


def _make(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _folder_or(wanted: str, instead: Path) -> Path:
    """Return a working folder: an image's own does not exist on this machine."""
    return Path(wanted) if wanted and Path(wanted).is_dir() else _make(instead)


def read_field(pod: Object, path: str) -> str:
    """Return what the downward API gives for a field path."""
    match = re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path)
    if match:
        return str((pod["metadata"].get(match[1]) or {}).get(match[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):
        values = pod["metadata"].get(path.partition(".")[2]) or {}
        return "\n".join(f'{name}="{value}"' for name, value in sorted(values.items()))
    found: Any = pod
    for step in path.split("."):
        found = found.get(step) if isinstance(found, dict) else None
    return "" if found is None else str(found)


def _read_resource(container: Object, reference: Object) -> str:
    where, _, name = reference["resource"].partition(".")
    amount = ((container.get("resources") or {}).get(where) or {}).get(name, "0")
    return str(read_quantity(amount) // max(1, read_quantity(reference.get("divisor") or "1")))


def read_quantity(text: str) -> int:
    """Return a Kubernetes quantity as a whole number, rounded up as the downward API does."""
    units = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
    units |= {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
    match = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", text)
    if match is None or match[2] not in units:
        raise SpecRefused(f"no quantity: {text}")
    return -int(-float(match[1]) * units[match[2]] // 1)


def _expand(text: str, environment: dict[str, str]) -> str:
    """Replace $(NAME) as Kubernetes does: unknown names stay, $$ is one dollar."""

    def value(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return environment.get(match["name"], match[0])

    return _VARIABLE.sub(value, text)
