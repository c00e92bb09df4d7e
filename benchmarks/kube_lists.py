"""The lists of a large cluster as an API server sends them, from a process of its own.

5,000 nodes and 50,000 pods in a real API server would take an hour to make and gigabytes to hold;
what a client sees of them are pages of JSON over TLS, and those are the same here: objects with
the fields, defaults and managed fields that Kubernetes 1.34 gives them, 500 a page, packed by gzip
at level 1 when the client takes it, as the API server does with answers over 128 KiB.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import gzip
import json
import ssl
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.certificates import Authority

PAGE = 500
LISTED_AT = 1_000_000
WHEN = "2026-03-01T12:00:00Z"
PACKED_FROM_BYTES = 128 << 10
PLACE = "PAGEPAGE"  # stands for the number of a page in the bytes of one


_POD_FIELDS: dict[str, Any] = {
    "f:metadata": {
        "f:generateName": {},
        "f:labels": {".": {}, "f:app": {}, "f:batch.kubernetes.io/job-name": {}},
        "f:ownerReferences": {".": {}, 'k:{"uid":"5f8a"}': {}},
    },
    "f:spec": {
        "f:containers": {
            'k:{"name":"main"}': {
                ".": {},
                "f:command": {},
                "f:env": {'k:{"name":"RANK"}': {".": {}, "f:name": {}, "f:value": {}}},
                "f:image": {},
                "f:resources": {".": {}, "f:limits": {".": {}, "f:nvidia.com/gpu": {}}},
                "f:volumeMounts": {'k:{"mountPath":"/data"}': {".": {}, "f:mountPath": {}}},
            }
        },
        "f:affinity": {".": {}, "f:nodeAffinity": {".": {}}},
        "f:restartPolicy": {},
        "f:schedulerName": {},
        "f:securityContext": {},
        "f:terminationGracePeriodSeconds": {},
    },
}


def a_pod(place: int) -> dict[str, Any]:
    """Return a pod of a training job, with what the API server and the kubelet add."""
    return {
        "metadata": _pod_metadata(place),
        "spec": _pod_spec(place),
        "status": _pod_status(),
    }


def _pod_metadata(place: int) -> dict[str, Any]:
    name = f"train-{PLACE}-{place:03}"
    return {
        "name": name,
        "generateName": "train-",
        "namespace": f"tenant-{place % 40}",
        "uid": f"3a1c9e52-77aa-4c1e-{place:04}-{PLACE}0000",
        "resourceVersion": f"1{place:04}7",
        "generation": 1,
        "creationTimestamp": WHEN,
        "labels": {
            "app": "train",
            "batch.kubernetes.io/controller-uid": "5f8a6b1c-2c52-4b7e-8f3c-000000000001",
            "batch.kubernetes.io/job-name": f"train-{PLACE}",
            "gpuplane.io/tenant-id": f"0197a000-0000-7000-8000-00000000{place % 40:04}",
            "gpuplane.io/job-id": f"0197a000-0000-7000-8000-{PLACE}{place:04}",
            "gpuplane.io/attempt": "1",
            "kueue.x-k8s.io/queue-name": "team",
        },
        "annotations": {
            "gpuplane.io/gpu-ids": "GPU-5f8a6b1c-2c52-4b7e-8f3c-000000000001",
            "gpuplane.io/manifest": json.dumps({"name": name, "gpus": 1, "command": ["x"] * 8}),
        },
        "ownerReferences": [
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "name": f"train-{PLACE}",
                "uid": f"5f8a6b1c-2c52-4b7e-8f3c-{PLACE}0001",
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
        "managedFields": [
            {
                "manager": manager,
                "operation": "Update",
                "apiVersion": "v1",
                "time": WHEN,
                "fieldsType": "FieldsV1",
                "fieldsV1": _POD_FIELDS,
            }
            for manager in ("kube-controller-manager", "kubelet")
        ],
    }


def _pod_spec(place: int) -> dict[str, Any]:
    return {
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
            {
                "name": "kube-api-access-x7k2p",
                "projected": {
                    "sources": [
                        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                        {"configMap": {"name": "kube-root-ca.crt"}},
                    ],
                    "defaultMode": 420,
                },
            },
        ],
        "containers": [
            {
                "name": "main",
                "image": "registry.example.com/team/train:2026.03",
                "command": ["torchrun", "--nnodes=8", "--nproc-per-node=8", "train.py"],
                "env": [
                    {"name": f"SETTING_{at}", "value": f"value of setting {at}"} for at in range(12)
                ],
                "resources": {
                    "limits": {"nvidia.com/gpu": "1", "cpu": "8", "memory": "64Gi"},
                    "requests": {"nvidia.com/gpu": "1", "cpu": "8", "memory": "64Gi"},
                },
                "volumeMounts": [
                    {"name": "data", "mountPath": "/data"},
                    {
                        "name": "kube-api-access-x7k2p",
                        "readOnly": True,
                        "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
                    },
                ],
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
                "imagePullPolicy": "IfNotPresent",
            }
        ],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        "serviceAccount": "default",
        "nodeName": f"gpu-{place % 5000:05}",
        "securityContext": {},
        "schedulerName": "default-scheduler",
        "tolerations": [
            {
                "key": f"node.kubernetes.io/{state}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 300,
            }
            for state in ("not-ready", "unreachable")
        ],
        "priority": 0,
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
    }


def _pod_status() -> dict[str, Any]:
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    return {
        "phase": "Running",
        "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": WHEN} for kind in kinds
        ],
        "hostIP": "10.1.2.3",
        "hostIPs": [{"ip": "10.1.2.3"}],
        "podIP": "10.244.7.9",
        "podIPs": [{"ip": "10.244.7.9"}],
        "startTime": WHEN,
        "containerStatuses": [
            {
                "name": "main",
                "state": {"running": {"startedAt": WHEN}},
                "lastState": {},
                "ready": True,
                "restartCount": 0,
                "image": "registry.example.com/team/train:2026.03",
                "imageID": "registry.example.com/team/train@sha256:" + "9f" * 32,
                "containerID": f"containerd://{PLACE}" + "c4" * 28,
                "started": True,
            }
        ],
        "qosClass": "Guaranteed",
    }


def a_node(place: int) -> dict[str, Any]:
    """Return a GPU node with the labels of feature discovery and the images it has pulled."""
    return {
        "metadata": _node_metadata(place),
        "spec": {
            "podCIDR": "10.244.7.0/24",
            "providerID": f"metal://{PLACE}{place}",
            "taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}],
        },
        "status": _node_status(),
    }


def _node_metadata(place: int) -> dict[str, Any]:
    features = {f"feature.node.kubernetes.io/cpu-cpuid.FEATURE{at}": "true" for at in range(50)}
    return {
        "name": f"gpu-{PLACE}-{place:03}",
        "uid": f"7b1c9e52-77aa-4c1e-{place:04}-{PLACE}0000",
        "resourceVersion": f"1{place:04}9",
        "creationTimestamp": WHEN,
        "labels": {
            "kubernetes.io/arch": "amd64",
            "kubernetes.io/hostname": f"gpu-{PLACE}-{place:03}",
            "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
            "nvidia.com/gpu.count": "8",
            "nvidia.com/gpu.memory": "81559",
            "nvidia.com/gpu.clique": f"{place % 16}",
        }
        | features,
        "annotations": {
            "kubeadm.alpha.kubernetes.io/cri-socket": "unix:///run/containerd/containerd.sock",
            "nfd.node.kubernetes.io/feature-labels": ",".join(features),
            "volumes.kubernetes.io/controller-managed-attach-detach": "true",
        },
        "managedFields": [
            {
                "manager": "kubelet",
                "operation": "Update",
                "apiVersion": "v1",
                "time": WHEN,
                "fieldsType": "FieldsV1",
                "fieldsV1": {"f:metadata": {"f:labels": {f"f:{key}": {} for key in features}}},
            }
        ],
    }


def _node_status() -> dict[str, Any]:
    conditions = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    amounts = {
        "cpu": "128",
        "memory": "2113400296Ki",
        "nvidia.com/gpu": "8",
        "pods": "110",
        "ephemeral-storage": "3749508192Ki",
        "hugepages-1Gi": "0",
        "hugepages-2Mi": "0",
    }
    return {
        "capacity": amounts,
        "allocatable": amounts,
        "conditions": [
            {
                "type": kind,
                "status": "True" if kind == "Ready" else "False",
                "lastHeartbeatTime": WHEN,
                "lastTransitionTime": WHEN,
                "reason": f"Kubelet{kind}",
                "message": f"kubelet says {kind}",
            }
            for kind in conditions
        ],
        "addresses": [{"type": "InternalIP", "address": "10.1.2.3"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        "nodeInfo": {
            "kernelVersion": "6.8.0-45-generic",
            "osImage": "Ubuntu 24.04.1 LTS",
            "kubeletVersion": "v1.34.4",
            "containerRuntimeVersion": "containerd://1.7.22",
            "architecture": "amd64",
            "operatingSystem": "linux",
            "kubeProxyVersion": "",
            "bootID": "4c1e5f8a-2c52-4b7e-8f3c-000000000001",
            "machineID": "5f8a6b1c2c524b7e8f3c000000000001",
            "systemUUID": "4c4c4544-0044-4b10-8036-000000000001",
        },
        "images": [
            {
                "names": [
                    f"registry.example.com/team/image-{at}@sha256:" + "ab" * 32,
                    f"registry.example.com/team/image-{at}:2026.03",
                ],
                "sizeBytes": 9_000_000_000 + at,
            }
            for at in range(50)
        ],
    }


@dataclass(frozen=True)
class Lists:
    """The lists of a cluster, a page at a time."""

    nodes: int
    pods: int
    events: int = 0

    def changes(self, plural: str) -> Iterator[bytes]:
        """Yield the lines of a watch: pods that change one after the other, then a bookmark."""
        for place in range(self.events if plural == "pods" else 0):
            pod = a_pod(place % PAGE)
            pod["metadata"]["resourceVersion"] = str(LISTED_AT + 1 + place)
            line = json.dumps({"type": "MODIFIED", "object": pod}, separators=(",", ":"))
            yield line.replace(PLACE, f"{place // PAGE * PAGE:08}").encode() + b"\n"
        mark = {"metadata": {"resourceVersion": str(LISTED_AT + 1 + self.events)}}
        yield json.dumps({"type": "BOOKMARK", "object": mark}).encode() + b"\n"

    def page(self, plural: str, begin: int) -> bytes:
        """Return the page of a list that begins at an object, as the server writes it."""
        total = getattr(self, plural)
        make = {"nodes": a_node, "pods": a_pod}[plural]
        meta: dict[str, Any] = {"resourceVersion": str(LISTED_AT)}
        if begin + PAGE < total:
            meta |= {"continue": str(begin + PAGE), "remainingItemCount": total - begin - PAGE}
        count = min(PAGE, total - begin)
        template = _TEMPLATES.get((plural, count))
        if template is None:
            items = [make(at) for at in range(count)]
            template = _TEMPLATES[plural, count] = json.dumps(items, separators=(",", ":")).encode()
        head = json.dumps({"kind": "List", "apiVersion": "v1", "metadata": meta}).encode()[:-1]
        items_text = template.replace(PLACE.encode(), f"{begin:08}".encode())
        return head + b',"items":' + items_text + b"}"

    def pages(self, plural: str) -> Iterator[bytes]:
        """Yield every page of a list."""
        for begin in range(0, getattr(self, plural), PAGE):
            yield self.page(plural, begin)


_TEMPLATES: dict[tuple[str, int], bytes] = {}


@dataclass(frozen=True)
class Running:
    """A server that runs: where, and whom to trust there."""

    port: int
    authority: str


@contextmanager
def running_server(lists: Lists) -> Iterator[Running]:
    """Run the server in a process of its own."""
    sizes = [str(number) for number in (lists.nodes, lists.pods, lists.events)]
    command = [sys.executable, "-m", __name__, *sizes]
    with Popen(command, stdout=PIPE, text=True) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        try:
            yield Running(told["port"], told["authority"])
        finally:
            process.terminate()


async def serve(lists: Lists) -> None:
    """Serve the lists until the process ends."""
    authority = Authority(datetime.datetime.now(datetime.UTC))
    pair = authority.sign("server", hosts=("127.0.0.1",))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(pair.certificate + pair.key)
        file.flush()
        context.load_cert_chain(Path(file.name))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while request := await reader.readline():
            packed = False
            while (line := await reader.readline()).strip():
                packed |= line.lower().startswith(b"accept-encoding:") and b"gzip" in line
            target = urlsplit(request.split()[1].decode())
            query = parse_qs(target.query)
            if "watch" in query:
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                for line in lists.changes(target.path.rpartition("/")[2]):
                    writer.write(b"%x\r\n%b\r\n" % (len(line), line))
                    await writer.drain()
                await reader.read()
                break
            plural = target.path.rpartition("/")[2]
            data = lists.page(plural, int(query.get("continue", ["0"])[0]))
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
            if packed and len(data) > PACKED_FROM_BYTES:
                data = gzip.compress(data, 1)
                head += b"Content-Encoding: gzip\r\n"
            writer.write(head + b"Content-Length: %d\r\n\r\n" % len(data) + data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    print(json.dumps({"port": port, "authority": authority.certificate}), flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("nodes", type=int)
    parser.add_argument("pods", type=int)
    parser.add_argument("events", type=int)
    arguments = parser.parse_args()
    asyncio.run(serve(Lists(arguments.nodes, arguments.pods, arguments.events)))
