"""A cluster of Google Kubernetes Engine as configuration of OpenTofu and Terraform.

Owns which resources there are and how they are spelt; the attributes are those of the provider
that `PROVIDER` pins. Nodes are private always, the API server unless the specification names who
may reach it; nodes run as an account of their own with the one role that GKE asks for.

Source: the GKE documentation (private clusters, least-privilege node accounts, GPU node pools,
compact placement) and the resource pages of the provider.
"""

from typing import Any

from gpuplane.core.provisioning.instances import find_gke_accelerator
from gpuplane.core.provisioning.networks import private_range
from gpuplane.core.provisioning.specs import ClusterSpec, Effect, NodePool

PROVIDER = ("google", "hashicorp/google", "6.50.0")
NODE_ROLE = "roles/container.defaultNodeServiceAccount"
CONTROL_PLANE_CIDR = "172.16.0.32/28"
_EFFECTS = {
    Effect.NO_SCHEDULE: "NO_SCHEDULE",
    Effect.PREFER_NO_SCHEDULE: "PREFER_NO_SCHEDULE",
    Effect.NO_EXECUTE: "NO_EXECUTE",
}
HYPERDISK = ("a3-ultragpu", "a4-highgpu", "c4-", "n4-")
"""Series that take no Persistent Disk. Source: Compute Engine, "About Hyperdisk"."""

Block = dict[str, Any]


def gke_configuration(spec: ClusterSpec) -> Block:
    """Return providers, resources, data and outputs of a cluster."""
    resources: dict[str, dict[str, Block]] = {
        "google_service_account": {
            "nodes": {"account_id": f"{spec.name[:24]}-nodes", "display_name": spec.name}
        },
        "google_project_iam_member": {
            "nodes": {
                "project": spec.project,
                "role": NODE_ROLE,
                "member": "${google_service_account.nodes.member}",
            }
        },
    }
    if not spec.network.subnet:
        _add_network(spec, resources)
    resources["google_container_cluster"] = {"cluster": _cluster(spec)}
    resources["google_container_node_pool"] = {
        pool.name.replace("-", "_"): _pool(spec, pool) for pool in spec.pools
    }
    cluster = "google_container_cluster.cluster"
    return {
        "provider": {
            "google": {
                "project": spec.project,
                "region": spec.region,
                "default_labels": spec.all_tags(),
            }
        },
        "resource": resources,
        "data": {"google_client_config": {"caller": {}}},
        "output": {
            "server": {"value": f"https://${{{cluster}.endpoint}}"},
            "certificate_authority_data": {
                "value": f"${{{cluster}.master_auth[0].cluster_ca_certificate}}"
            },
            "token": {
                "value": "${data.google_client_config.caller.access_token}",
                "sensitive": True,
            },
        },
    }


def _add_network(spec: ClusterSpec, resources: dict[str, dict[str, Block]]) -> None:
    resources["google_compute_network"] = {
        "network": {"name": spec.name, "auto_create_subnetworks": False}
    }
    resources["google_compute_subnetwork"] = {
        "nodes": {
            "name": f"{spec.name}-nodes",
            "network": "${google_compute_network.network.id}",
            "region": spec.region,
            "ip_cidr_range": private_range(spec.network.cidr, 0),
            "private_ip_google_access": True,
        }
    }
    resources["google_compute_router"] = {
        "network": {
            "name": spec.name,
            "network": "${google_compute_network.network.id}",
            "region": spec.region,
        }
    }
    resources["google_compute_router_nat"] = {
        "network": {
            "name": spec.name,
            "router": "${google_compute_router.network.name}",
            "region": spec.region,
            "nat_ip_allocate_option": "AUTO_ONLY",
            "source_subnetwork_ip_ranges_to_nat": "ALL_SUBNETWORKS_ALL_IP_RANGES",
        }
    }


def _cluster(spec: ClusterSpec) -> Block:
    found: Block = {
        "name": spec.name,
        # A control plane in every zone of the region; nodes only where they are asked for.
        "location": spec.region,
        "node_locations": list(spec.zones),
        "min_master_version": spec.kubernetes_version,
        "remove_default_node_pool": True,
        "initial_node_count": 1,
        # `gpuplane clusters deprovision` asks for the name; the provider could only be asked twice.
        "deletion_protection": False,
        "networking_mode": "VPC_NATIVE",
        "datapath_provider": "ADVANCED_DATAPATH",
        "enable_shielded_nodes": True,
        "resource_labels": spec.all_tags(),
        "subnetwork": spec.network.subnet or "${google_compute_subnetwork.nodes.id}",
        "ip_allocation_policy": [{}],
        "private_cluster_config": [
            {
                "enable_private_nodes": True,
                "enable_private_endpoint": not spec.public_cidrs,
                "master_ipv4_cidr_block": CONTROL_PLANE_CIDR,
            }
        ],
        "master_authorized_networks_config": [
            {"cidr_blocks": [{"cidr_block": each} for each in spec.public_cidrs]}
        ],
        "master_auth": [{"client_certificate_config": [{"issue_client_certificate": False}]}],
        "release_channel": [{"channel": "UNSPECIFIED"}],
        "workload_identity_config": [{"workload_pool": f"{spec.project}.svc.id.goog"}],
        # The first nodes are removed at once, and never run as the project's default account.
        "node_config": [{"service_account": "${google_service_account.nodes.email}"}],
        "lifecycle": [{"ignore_changes": ["node_config", "initial_node_count"]}],
        "depends_on": ["google_project_iam_member.nodes"],
    }
    if not spec.network.subnet:
        found["network"] = "${google_compute_network.network.id}"
    if spec.kms_key:
        found["database_encryption"] = [{"state": "ENCRYPTED", "key_name": spec.kms_key}]
    return found


def _pool(spec: ClusterSpec, pool: NodePool) -> Block:
    config: Block = {
        "machine_type": pool.instance_type,
        "image_type": "COS_CONTAINERD",
        "disk_size_gb": pool.disk_gib,
        "disk_type": "hyperdisk-balanced" if pool.instance_type.startswith(HYPERDISK)
        else "pd-balanced",
        "service_account": "${google_service_account.nodes.email}",
        # What the account may do is said by its role, not by scopes.
        "oauth_scopes": ["https://www.googleapis.com/auth/cloud-platform"],
        "spot": pool.spot,
        "labels": dict(pool.labels),
        "metadata": {"disable-legacy-endpoints": "true"},
        "resource_labels": spec.all_tags(),
        "gvnic": [{"enabled": True}],
        "shielded_instance_config": [
            {"enable_secure_boot": True, "enable_integrity_monitoring": True}
        ],
        "workload_metadata_config": [{"mode": "GKE_METADATA"}],
        "taint": [
            {"key": each.key, "value": each.value, "effect": _EFFECTS[each.effect]}
            for each in pool.all_taints
        ],
    }  # fmt: skip
    if pool.gpu_model is not None:
        config["guest_accelerator"] = [
            {
                "type": find_gke_accelerator(pool.instance_type, pool.gpu_model),
                "count": pool.gpu_count,
                "gpu_driver_installation_config": [{"gpu_driver_version": "DEFAULT"}],
            }
        ]
    if spec.kms_key:
        config["boot_disk_kms_key"] = spec.kms_key
    found: Block = {
        "name": pool.name,
        "cluster": "${google_container_cluster.cluster.id}",
        "node_locations": list(pool.zones or spec.zones),
        "initial_node_count": 0 if pool.minimum == 0 else 1,
        "autoscaling": [
            {
                "total_min_node_count": pool.minimum,
                "total_max_node_count": pool.maximum,
                "location_policy": "ANY" if pool.spot or pool.gpu_count else "BALANCED",
            }
        ],
        "management": [{"auto_repair": True, "auto_upgrade": False}],
        "node_config": [config],
        "lifecycle": [{"ignore_changes": ["initial_node_count"]}],
    }
    if pool.placement_group:
        found["placement_policy"] = [{"type": "COMPACT"}]
    return found
