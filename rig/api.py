"""A few requests to a cluster's API server, for the rig alone: objects in, objects out.

The product has a client of its own; the rig does without it, so that a fault in the client cannot
hide in what tests it.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import yaml

Object = dict[str, Any]
FIELD_MANAGER = "gpuplane-rig"
TIMEOUT_S = 30.0
WATCH_S = 240  # then the API server ends a watch, which also shows us a dead connection
WATCH_SILENCE_S = WATCH_S + 30.0

# Plurals that are not the kind in lower case with an "s".
_PLURALS = {
    "NetworkPolicy": "networkpolicies",
    "PriorityClass": "priorityclasses",
    "WorkloadPriorityClass": "workloadpriorityclasses",
    "StorageClass": "storageclasses",
    "Endpoints": "endpoints",
}
_CLUSTER_WIDE = frozenset(
    "Namespace Node ClusterRole ClusterRoleBinding CustomResourceDefinition PriorityClass "
    "MutatingWebhookConfiguration ValidatingWebhookConfiguration PersistentVolume StorageClass "
    "ResourceFlavor ClusterQueue Cohort Topology WorkloadPriorityClass AdmissionCheck "
    "MultiKueueConfig MultiKueueCluster FlowSchema PriorityLevelConfiguration".split()
)


@dataclass(frozen=True)
class Access:
    """How an API server is reached and as whom."""

    url: str
    authority: Path
    token: str

    def kubeconfig(self, name: str) -> str:
        """Return a kubeconfig document with everything inside it."""
        import base64

        authority = base64.b64encode(self.authority.read_bytes()).decode()
        return yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [
                    {
                        "name": name,
                        "cluster": {"server": self.url, "certificate-authority-data": authority},
                    }
                ],
                "users": [{"name": name, "user": {"token": self.token}}],
                "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
                "current-context": name,
            },
            sort_keys=False,
        )

    def _settings(self) -> dict[str, Any]:
        return {
            "base_url": self.url,
            "headers": {"Authorization": f"Bearer {self.token}"},
            "verify": ssl.create_default_context(cafile=str(self.authority)),
            "timeout": TIMEOUT_S,
            "trust_env": False,
        }

    def client(self) -> httpx2.Client:
        return httpx2.Client(**self._settings())

    def async_client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(**self._settings())


class Api:
    """The few verbs the rig needs, one after the other."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._client = access.client()

    def close(self) -> None:
        self._client.close()

    def is_ready(self) -> bool:
        try:
            return self._client.get("/readyz", timeout=2.0).status_code == 200
        except httpx2.HTTPError:
            return False

    def find(self, path: str) -> Object | None:
        """Return what is at a path, or None."""
        response = self._client.get(path)
        if response.status_code == 404:
            return None
        response.raise_for_status()
        found: Object = response.json()
        return found

    def create(self, obj: Object) -> Object | None:
        """Create an object; None where it is there already."""
        response = self._client.post(collection_path(obj), json=obj)
        if response.status_code == 409:
            return None
        raise_with_reason(response)
        made: Object = response.json()
        return made

    def apply(self, obj: Object, subresource: str = "") -> Object:
        """Make an object as it is written here, whoever wrote it before."""
        path = f"{collection_path(obj)}/{obj['metadata']['name']}{subresource}"
        response = self._client.patch(
            path,
            params={"fieldManager": FIELD_MANAGER, "force": "true"},
            headers={"Content-Type": "application/apply-patch+yaml"},
            content=json.dumps(obj),
        )
        raise_with_reason(response)
        made: Object = response.json()
        return made

    def delete(self, path: str) -> None:
        """Delete what is at a path; nothing there is fine."""
        response = self._client.delete(path)
        if response.status_code != 404:
            raise_with_reason(response)


def collection_path(obj: Object) -> str:
    """Return the path that objects of this kind are created at."""
    version, kind = obj["apiVersion"], obj["kind"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    plural = _PLURALS.get(kind, f"{kind.lower()}s")
    if kind in _CLUSTER_WIDE:
        return f"{root}/{plural}"
    return f"{root}/namespaces/{obj['metadata'].get('namespace', 'default')}/{plural}"


def raise_with_reason(response: httpx2.Response) -> None:
    """Raise what the API server said about a refused request."""
    if response.is_success:
        return
    raise httpx2.HTTPStatusError(
        f"{response.request.method} {response.request.url.path}: {response.status_code} "
        f"{response.text[:1000]}",
        request=response.request,
        response=response,
    )


async def watch(
    client: httpx2.AsyncClient, path: str, resource_version: str, **parameters: str
) -> AsyncIterator[tuple[str, Object]]:
    """Yield changes of a list from a version on, until the API server ends the watch."""
    wanted = {
        "watch": "true",
        "resourceVersion": resource_version,
        "allowWatchBookmarks": "true",
        "timeoutSeconds": str(WATCH_S),
        **parameters,
    }
    timeout = httpx2.Timeout(TIMEOUT_S, read=WATCH_SILENCE_S)
    async with client.stream("GET", path, params=wanted, timeout=timeout) as response:
        if not response.is_success:
            await response.aread()
            raise_with_reason(response)
        async for line in response.aiter_lines():
            change = json.loads(line)
            yield change["type"], change["object"]
