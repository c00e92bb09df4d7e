"""A cluster of Azure Kubernetes Service as configuration of OpenTofu and Terraform.

Owns which resources there are and how they are spelt; the attributes are those of the provider
that `PROVIDER` pins. The API server is private unless the specification names who may reach it.

Source: the AKS documentation (private clusters, GPU node pools, spot node pools, Entra ID, host
encryption) and the resource pages of the provider.
"""

from typing import Any

from gpuplane.core.provisioning.networks import private_range
from gpuplane.core.provisioning.specs import ClusterSpec, NodePool, Taint

PROVIDER = ("azurerm", "hashicorp/azurerm", "4.55.0")
SPOT_KEY = "kubernetes.azure.com/scalesetpriority"
"""Label and taint that AKS sets on spot nodes; unnamed they would be a difference for ever."""
POD_CIDR, SERVICE_CIDR, DNS_IP = "10.244.0.0/16", "10.0.0.0/16", "10.0.0.10"
"""Overlay ranges, seen inside the cluster alone; AKS' own defaults, said so that they stay."""

Block = dict[str, Any]


def aks_configuration(spec: ClusterSpec) -> Block:
    """Return providers, resources and outputs of a cluster."""
    group = "${azurerm_resource_group.cluster.name}"
    place = {"location": spec.region, "resource_group_name": group, "tags": spec.all_tags()}
    resources: dict[str, dict[str, Block]] = {
        "azurerm_resource_group": {
            "cluster": {"name": spec.name, "location": spec.region, "tags": spec.all_tags()}
        },
        "azurerm_user_assigned_identity": {"cluster": {"name": f"{spec.name}-cluster", **place}},
    }
    if not spec.network.subnet:
        resources["azurerm_virtual_network"] = {
            "network": {"name": spec.name, "address_space": [spec.network.cidr], **place}
        }
        resources["azurerm_subnet"] = {
            "nodes": {
                "name": "nodes",
                "resource_group_name": group,
                "virtual_network_name": "${azurerm_virtual_network.network.name}",
                "address_prefixes": [private_range(spec.network.cidr, 1)],
            }
        }
    # All that the cluster may do outside itself: join nodes to the subnet.
    resources["azurerm_role_assignment"] = {
        "subnet": {
            "scope": _subnet(spec),
            "role_definition_name": "Network Contributor",
            "principal_id": "${azurerm_user_assigned_identity.cluster.principal_id}",
        }
    }
    resources["azurerm_kubernetes_cluster"] = {"cluster": _cluster(spec, place)}
    others = [pool for pool in spec.pools if pool is not spec.system_pool]
    for pool in others:
        word = pool.name
        if pool.placement_group:
            resources.setdefault("azurerm_proximity_placement_group", {})[word] = {
                "name": f"{spec.name}-{pool.name}",
                **place,
            }
        resources.setdefault("azurerm_kubernetes_cluster_node_pool", {})[word] = _pool(spec, pool)
    output = "azurerm_kubernetes_cluster.cluster"
    config = f"{output}.kube_config[0]"
    outputs: Block = {
        "server": {"value": f"${{{config}.host}}", "sensitive": True},
        "certificate_authority_data": {
            "value": f"${{{config}.cluster_ca_certificate}}",
            "sensitive": True,
        },
    }
    if not spec.admin_groups:
        for name, attribute in (("client_certificate_data", "client_certificate"),
                                ("client_key_data", "client_key")):  # fmt: skip
            outputs[name] = {"value": f"${{{config}.{attribute}}}", "sensitive": True}
    return {
        "provider": {"azurerm": {"features": [{}]}},
        "resource": resources,
        "output": outputs,
    }


def _cluster(spec: ClusterSpec, place: Block) -> Block:
    system = spec.system_pool
    found: Block = {
        "name": spec.name,
        **place,
        "dns_prefix": spec.name,
        "kubernetes_version": spec.kubernetes_version,
        "sku_tier": "Standard",
        "private_cluster_enabled": not spec.public_cidrs,
        "role_based_access_control_enabled": True,
        "oidc_issuer_enabled": True,
        "workload_identity_enabled": True,
        "local_account_disabled": bool(spec.admin_groups),
        "identity": [
            {
                "type": "UserAssigned",
                "identity_ids": ["${azurerm_user_assigned_identity.cluster.id}"],
            }
        ],
        "network_profile": [
            {
                "network_plugin": "azure",
                "network_plugin_mode": "overlay",
                "network_data_plane": "cilium",
                "network_policy": "cilium",
                "pod_cidr": POD_CIDR,
                "service_cidr": SERVICE_CIDR,
                "dns_service_ip": DNS_IP,
            }
        ],
        "default_node_pool": [
            _nodes(spec, system)
            | {
                "name": system.name,
                "temporary_name_for_rotation": "rotating",
                "only_critical_addons_enabled": False,
            }
        ],
        # What the autoscaler chose is not undone by the next plan.
        "lifecycle": [{"ignore_changes": ["default_node_pool[0].node_count"]}],
        "depends_on": ["azurerm_role_assignment.subnet"],
    }
    if spec.public_cidrs:
        found["api_server_access_profile"] = [{"authorized_ip_ranges": list(spec.public_cidrs)}]
    if spec.admin_groups:
        found["azure_active_directory_role_based_access_control"] = [
            {"azure_rbac_enabled": False, "admin_group_object_ids": list(spec.admin_groups)}
        ]
    if spec.kms_key:
        found["disk_encryption_set_id"] = spec.kms_key
    return found


def _pool(spec: ClusterSpec, pool: NodePool) -> Block:
    taints, labels = list(pool.all_taints), dict(pool.labels)
    found: Block = {
        "name": pool.name,
        "kubernetes_cluster_id": "${azurerm_kubernetes_cluster.cluster.id}",
        "mode": "User",
        **_nodes(spec, pool),
    }
    if pool.spot:
        found |= {"priority": "Spot", "eviction_policy": "Delete", "spot_max_price": -1}
        labels[SPOT_KEY] = "spot"
    if pool.placement_group:
        group = f"azurerm_proximity_placement_group.{pool.name}.id"
        found["proximity_placement_group_id"] = f"${{{group}}}"
    if pool.gpu_count:
        found["gpu_driver"] = "Install"
    texts = [_taint(each) for each in taints]
    found["node_taints"] = [*texts, *([f"{SPOT_KEY}=spot:NoSchedule"] if pool.spot else [])]
    found["node_labels"] = dict(sorted(labels.items()))
    found["lifecycle"] = [{"ignore_changes": ["node_count"]}]
    return found


def _nodes(spec: ClusterSpec, pool: NodePool) -> Block:
    """Return what the system pool and every other pool say alike."""
    return {
        "vm_size": pool.instance_type,
        "os_sku": "Ubuntu",
        "os_disk_size_gb": pool.disk_gib,
        "vnet_subnet_id": _subnet(spec),
        "zones": [zone.rpartition("-")[2] for zone in pool.zones or spec.zones],
        "auto_scaling_enabled": True,
        "min_count": pool.minimum,
        "max_count": pool.maximum,
        "host_encryption_enabled": spec.host_encryption,
        "node_public_ip_enabled": False,
        "node_labels": dict(pool.labels),
        "tags": spec.all_tags(),
    }


def _subnet(spec: ClusterSpec) -> str:
    return spec.network.subnet or "${azurerm_subnet.nodes.id}"


def _taint(taint: Taint) -> str:
    return f"{taint.key}={taint.value}:{taint.effect.value}"
