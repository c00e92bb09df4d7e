"""Folders for claims: what a storage provider is to a real cluster.

A claim of the class `rig-local`, which is the default, gets a hostPath volume with a folder of its
own; both go when the claim goes. It never touches claims of other classes.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import httpx2

from rig.api import raise_with_reason

Object = dict[str, Any]
CLASS = "rig-local"
CLAIMS = "/api/v1/persistentvolumeclaims"
STORAGE_CLASS: Object = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {
        "name": CLASS,
        "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
    },
    "provisioner": "rig.gpuplane.io/folders",
    "reclaimPolicy": "Delete",
    "volumeBindingMode": "Immediate",
}


class Provisioner:
    """Makes and removes the volumes of claims."""

    def __init__(self, client: httpx2.AsyncClient, folder: Path) -> None:
        self._client = client
        self._folder = folder

    async def see_claim(self, kind: str, claim: Object) -> None:
        """Take a change of a claim."""
        spec, meta = claim["spec"], claim["metadata"]
        if spec.get("storageClassName") != CLASS:
            return
        name = f"pvc-{meta['uid']}"
        if kind == "DELETED":
            answer = await self._client.delete(f"/api/v1/persistentvolumes/{name}")
            if answer.status_code != 404:
                raise_with_reason(answer)
            shutil.rmtree(self._folder / name, ignore_errors=True)
        elif not spec.get("volumeName"):
            answer = await self._client.post(
                "/api/v1/persistentvolumes", json=self._volume(name, claim)
            )
            if answer.status_code != 409:
                raise_with_reason(answer)

    def _volume(self, name: str, claim: Object) -> Object:
        folder = self._folder / name
        folder.mkdir(parents=True, exist_ok=True)
        spec, meta = claim["spec"], claim["metadata"]
        return {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": spec["resources"]["requests"]["storage"]},
                "accessModes": spec["accessModes"],
                "storageClassName": CLASS,
                # Removed here, not by a plug-in that the controllers would look for.
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": str(folder)},
                "claimRef": {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "namespace": meta["namespace"],
                    "name": meta["name"],
                    "uid": meta["uid"],
                },
            },
        }
