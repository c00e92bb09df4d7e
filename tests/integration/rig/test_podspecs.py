"""What a pod's specification becomes for a process."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from rig.podspecs import MountRefused, PodFiles, SpecRefused, read_field, read_quantity


def a_pod(**spec: Any) -> dict[str, Any]:
    meta = {"name": "pod", "namespace": "ns", "labels": {"app": "x", "team": "y"}}
    return {"metadata": meta, "spec": {"nodeName": "node", **spec}, "status": {"podIP": "10.0.0.9"}}


def files_of(tmp_path: Path, pod: dict[str, Any], **objects: dict[str, Any]) -> PodFiles:
    async def fetch(path: str) -> dict[str, Any] | None:
        return objects.get(path.rpartition("/")[2])

    return PodFiles(tmp_path, pod, fetch)


async def test_variables_are_replaced_in_commands_as_kubernetes_does(tmp_path: Path) -> None:
    container = {
        "name": "c",
        "image": "i",
        "command": ["run", "$(A)", "$(B)", "$(NO)", "$$(A)", "$$$$"],
        "env": [{"name": "A", "value": "one"}, {"name": "B", "value": "$(A)-two"}],
    }
    command = await files_of(tmp_path, a_pod()).command(container, {})
    assert command.words == ["run", "one", "one-two", "$(NO)", "$(A)", "$$"]


async def test_a_mount_path_becomes_the_folder_of_its_volume(tmp_path: Path) -> None:
    files = files_of(tmp_path, a_pod(volumes=[{"name": "v", "emptyDir": {}}]))
    await files.make_volumes()
    container = {
        "name": "c",
        "image": "i",
        "command": ["sh", "-c", "ls /data /data/in /data-2 x/data"],
        "volumeMounts": [{"name": "v", "mountPath": "/data"}],
    }
    command = await files.command(container, {})
    folder = tmp_path / "ns" / "pod" / "volumes" / "v"
    assert command.words[2] == f"ls {folder} {folder}/in /data-2 x/data"


async def test_variables_come_from_secrets_config_maps_and_the_pod(tmp_path: Path) -> None:
    secret = {"data": {"token": base64.b64encode(b"s3cret").decode()}}
    container = {
        "name": "c",
        "image": "i",
        "command": ["run"],
        "resources": {"limits": {"cpu": "1500m"}},
        "envFrom": [{"configMapRef": {"name": "settings"}, "prefix": "P_"}],
        "env": [
            {"name": "T", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        ],
    }
    files = files_of(tmp_path, a_pod(), keys=secret, settings={"data": {"a": "b"}})
    command = await files.command(container, {})
    assert command.environment == {"P_a": "b", "T": "s3cret", "NODE": "node", "CPU": "2"}


async def test_a_missing_secret_is_named(tmp_path: Path) -> None:
    source = {"secretKeyRef": {"name": "keys", "key": "token"}}
    env = [{"name": "T", "valueFrom": source}]
    container = {"name": "c", "image": "i", "command": ["run"], "env": env}
    with pytest.raises(SpecRefused, match='secret "keys" not found'):
        await files_of(tmp_path, a_pod()).command(container, {})


async def test_a_container_without_a_command_says_why_it_cannot_run(tmp_path: Path) -> None:
    with pytest.raises(SpecRefused, match="not pulled here"):
        await files_of(tmp_path, a_pod()).command({"name": "c", "image": "model:1"}, {})


async def test_a_volume_that_needs_a_mount_is_refused_by_its_kind(tmp_path: Path) -> None:
    files = files_of(tmp_path, a_pod(volumes=[{"name": "v", "csi": {"driver": "x"}}]))
    with pytest.raises(MountRefused, match="no csi volumes"):
        await files.make_volumes()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("metadata.name", "pod"),
        ("metadata.labels['team']", "y"),
        ("metadata.labels", 'app="x"\nteam="y"'),
        ("status.podIP", "10.0.0.9"),
        ("metadata.annotations['none']", ""),
    ],
)
def test_fields_of_a_pod_are_read_as_the_downward_api_reads_them(path: str, expected: str) -> None:
    assert read_field(a_pod(), path) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1500m", 2), ("2", 2), ("1Ki", 1024), ("1.5Gi", 1610612736), ("2k", 2000)],
)
def test_quantities_are_rounded_up(text: str, expected: int) -> None:
    assert read_quantity(text) == expected
