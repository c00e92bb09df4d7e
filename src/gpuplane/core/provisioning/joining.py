"""Scripts that make machines into a cluster: k3s and kubeadm, first server, further ones, agents.

Owns what the scripts say. No token is ever in a script: it is read from a file on the machine that
only root reads. Versions are pinned, a binary is checked against its digest, packages against the
fingerprint of the key that signs them. Running a script again changes nothing.

Source: docs.k3s.io (configuration file, token, NVIDIA runtime), kubernetes.io (kubeadm v1beta4
configuration, installing kubeadm), NVIDIA Container Toolkit's installation guide.
"""

import json
from enum import StrEnum

from gpuplane.core.provisioning.scripts import K3S, KUBEADM, NVIDIA, PRELUDE, TOKEN
from gpuplane.core.provisioning.specs import ClusterSpec, Machines, Platform, Taint

KUBERNETES_KEY = "DE15B14486CD377B9E876E1A234654DA9A296436"
"""Signs pkgs.k8s.io; fingerprint as several public installers pin it."""
NVIDIA_KEY = "C95B321B61E88C1809C4F759DDCAE044F796ECB0"
"""Signs NVIDIA's container toolkit (its id DDCAE044F796ECB0 is told in
github.com/NVIDIA/nvidia-container-runtime/issues/88)."""


class Role(StrEnum):
    """What a machine is to be."""

    FIRST_SERVER = "first-server"
    SERVER = "server"
    AGENT = "agent"


class NoScript(ValueError):
    """There is no script for what was asked; the message says why and what to do."""


def join_script(spec: ClusterSpec, role: Role) -> str:
    """Return the script to run as root on a machine.

    Args:
        spec: Of k3s or kubeadm.
        role: What the machine is to be.

    Raises:
        NoScript: If a cloud makes the nodes, or kubeadm's authority is not known yet.
    """
    machines = spec.machines
    if machines is None:
        raise NoScript(f"{spec.platform} makes its nodes itself: `gpuplane clusters provision`.")
    if spec.platform is Platform.K3S:
        return _k3s(spec, machines, role)
    if role is not Role.FIRST_SERVER and not machines.ca_cert_hash:
        raise NoScript(
            "kubeadm joins only a cluster whose authority it knows. Put what the first server's "
            "script prints last into spec.machines.caCertHash."
        )
    return _kubeadm(spec, machines, role)


def _head(spec: ClusterSpec, role: Role, machines: Machines) -> str:
    values = {
        "CLUSTER": spec.name,
        "ROLE": role.value,
        "VERSION": spec.kubernetes_version,
        "ENDPOINT": machines.endpoint,
        "NVIDIA_TOOLKIT": machines.nvidia_toolkit,
        "NVIDIA_KEY": NVIDIA_KEY,
    }
    if spec.platform is Platform.K3S:
        digests = dict(machines.sha256)
        values |= {f"SHA256_{arch.upper()}": digests.get(arch, "") for arch in ("amd64", "arm64")}
    else:
        values |= {"KUBERNETES_KEY": KUBERNETES_KEY}
    lines = [f"readonly {name}={_quoted(value)}" for name, value in values.items()]
    return PRELUDE.replace("@VALUES@", "\n".join(lines))


def _k3s(spec: ClusterSpec, machines: Machines, role: Role) -> str:
    config: dict[str, object] = {"token-file": "/etc/rancher/k3s/gpuplane-token"}
    if role is Role.FIRST_SERVER:
        config["cluster-init"] = True
    else:
        config["server"] = f"https://{machines.endpoint}:6443"
    if role is not Role.AGENT:
        config |= {
            "tls-san": [machines.endpoint],
            "cluster-cidr": machines.pod_cidr,
            "service-cidr": machines.service_cidr,
            "secrets-encryption": True,
            "write-kubeconfig-mode": "0600",
        }
    else:
        config["node-label"] = [f"{key}={value}" for key, value in machines.labels]
        config["node-taint"] = [_taint(each) for each in machines.taints]
    if machines.nvidia_toolkit:
        config["default-runtime"] = "nvidia"
    document = json.dumps(config, indent=2)  # a JSON document is YAML
    nvidia = NVIDIA if machines.nvidia_toolkit else ""
    body = K3S.replace("@CONFIG@", document).replace(
        "@MODE@", "agent" if role is Role.AGENT else "server"
    )
    return _head(spec, role, machines) + TOKEN + nvidia + body


def _kubeadm(spec: ClusterSpec, machines: Machines, role: Role) -> str:
    nvidia = NVIDIA if machines.nvidia_toolkit else ""
    body = (
        KUBEADM.replace("@VERB@", "init" if role is Role.FIRST_SERVER else "join")
        .replace("@CONFIG@", _kubeadm_config(spec, machines, role))
        .replace("@MINOR@", spec.kubernetes_version.rpartition(".")[0])
    )
    return _head(spec, role, machines) + TOKEN + nvidia + body


def _kubeadm_config(spec: ClusterSpec, machines: Machines, role: Role) -> str:
    """Return the configuration; `@TOKEN@` and `@KEY@` are put in on the machine."""
    api = "kubeadm.k8s.io/v1beta4"
    address = f"{machines.endpoint}:6443"
    node: dict[str, object] = {"criSocket": "unix:///run/containerd/containerd.sock"}
    if role is Role.AGENT:
        labels = ",".join(f"{key}={value}" for key, value in machines.labels)
        node["kubeletExtraArgs"] = [{"name": "node-labels", "value": labels}] if labels else []
        node["taints"] = [
            {"key": each.key, "value": each.value, "effect": each.effect.value}
            for each in machines.taints
        ]
    if role is Role.FIRST_SERVER:
        first = {
            "apiVersion": api,
            "kind": "InitConfiguration",
            "bootstrapTokens": [{"token": "@TOKEN@", "ttl": "24h0m0s"}],
            "nodeRegistration": node,
        }
        cluster = {
            "apiVersion": api,
            "kind": "ClusterConfiguration",
            "clusterName": spec.name,
            "kubernetesVersion": f"v{spec.kubernetes_version}",
            "controlPlaneEndpoint": address,
            "networking": {
                "podSubnet": machines.pod_cidr,
                "serviceSubnet": machines.service_cidr,
            },
        }
        return "\n---\n".join(json.dumps(each, indent=2) for each in (first, cluster))
    bootstrap = {
        "token": "@TOKEN@",
        "apiServerEndpoint": address,
        "caCertHashes": [machines.ca_cert_hash],
    }
    joining: dict[str, object] = {
        "apiVersion": api,
        "kind": "JoinConfiguration",
        "discovery": {"bootstrapToken": bootstrap},
        "nodeRegistration": node,
    }
    if role is Role.SERVER:
        joining["controlPlane"] = {"certificateKey": "@KEY@"}
    return json.dumps(joining, indent=2)


def _taint(taint: Taint) -> str:
    return f"{taint.key}={taint.value}:{taint.effect.value}"


def _quoted(text: str) -> str:
    """Return text as one word of a shell; the forms of a specification have no quotes."""
    if "'" in text:
        raise ValueError(f"{text!r} holds a quote")
    return f"'{text}'"
