"""A cluster of Amazon EKS as configuration of OpenTofu and Terraform.

Owns which resources there are and how they are spelt; the attributes are those of the provider
that `PROVIDER` pins. Everything is private and encrypted unless the specification opens it, and
roles have the policies that EKS itself asks for and no more.

Source: the Amazon EKS User Guide (cluster and node IAM roles, launch templates for managed node
groups, EFA) and the resource pages of the provider.
"""

from typing import Any

from gpuplane.core.provisioning.instances import EFA_INTERFACES
from gpuplane.core.provisioning.networks import private_range, public_range
from gpuplane.core.provisioning.specs import ClusterSpec, Effect, NodePool

PROVIDER = ("aws", "hashicorp/aws", "6.25.0")
CPU_IMAGE = "AL2023_x86_64_STANDARD"
ARM_IMAGE = "AL2023_ARM_64_STANDARD"
GPU_IMAGE = "AL2023_x86_64_NVIDIA"
"""Amazon Linux 2023 with NVIDIA's driver and container toolkit; the GPU operator finds both."""

CLUSTER_POLICIES = ("AmazonEKSClusterPolicy",)
NODE_POLICIES = (
    "AmazonEC2ContainerRegistryPullOnly",
    "AmazonEKSWorkerNodePolicy",
    "AmazonEKS_CNI_Policy",
)
_EFFECTS = {
    Effect.NO_SCHEDULE: "NO_SCHEDULE",
    Effect.PREFER_NO_SCHEDULE: "PREFER_NO_SCHEDULE",
    Effect.NO_EXECUTE: "NO_EXECUTE",
}

Block = dict[str, Any]


def eks_configuration(spec: ClusterSpec) -> Block:
    """Return providers, resources, data and outputs of a cluster."""
    resources: dict[str, dict[str, Block]] = {}
    _add_roles(spec, resources)
    if not spec.network.subnets:
        _add_network(spec, resources)
    if not spec.kms_key:
        resources["aws_kms_key"] = {
            "cluster": {
                "description": f"Secrets of the EKS cluster {spec.name}",
                "enable_key_rotation": True,
                "deletion_window_in_days": 30,
            }
        }
    _add_cluster(spec, resources)
    for pool in spec.pools:
        _add_pool(spec, pool, resources)
    return {
        "provider": {"aws": {"region": spec.region, "default_tags": [{"tags": spec.all_tags()}]}},
        "resource": resources,
        "data": {"aws_eks_cluster_auth": {"cluster": {"name": "${aws_eks_cluster.cluster.name}"}}},
        "output": {
            "server": {"value": "${aws_eks_cluster.cluster.endpoint}"},
            "certificate_authority_data": {
                "value": "${aws_eks_cluster.cluster.certificate_authority[0].data}"
            },
            "token": {"value": "${data.aws_eks_cluster_auth.cluster.token}", "sensitive": True},
        },
    }


def _add_roles(spec: ClusterSpec, resources: dict[str, dict[str, Block]]) -> None:
    roles = {"cluster": ("eks.amazonaws.com", CLUSTER_POLICIES),
             "node": ("ec2.amazonaws.com", NODE_POLICIES)}  # fmt: skip
    for name, (service, policies) in roles.items():
        resources.setdefault("aws_iam_role", {})[name] = {
            "name": f"{spec.name}-{name}",
            "assume_role_policy": (
                '{"Statement":[{"Action":["sts:AssumeRole"],"Effect":"Allow",'
                f'"Principal":{{"Service":"{service}"}}}}],"Version":"2012-10-17"}}'
            ),
        }
        for policy in policies:
            resources.setdefault("aws_iam_role_policy_attachment", {})[
                f"{name}_{policy.lower()}"
            ] = {
                "role": f"${{aws_iam_role.{name}.name}}",
                "policy_arn": f"arn:aws:iam::aws:policy/{policy}",
            }


def _add_network(spec: ClusterSpec, resources: dict[str, dict[str, Block]]) -> None:
    """Add a network whose nodes reach out through one gateway and are reached by nobody."""
    cidr = spec.network.cidr
    vpc = {"vpc_id": "${aws_vpc.network.id}"}
    resources["aws_vpc"] = {
        "network": {
            "cidr_block": cidr,
            "enable_dns_hostnames": True,
            "enable_dns_support": True,
            "tags": {"Name": spec.name},
        }
    }
    resources["aws_subnet"] = {
        "public": {
            **vpc,
            "availability_zone": spec.zones[0],
            "cidr_block": public_range(cidr),
            "map_public_ip_on_launch": False,
            "tags": {"Name": f"{spec.name}-public", "kubernetes.io/role/elb": "1"},
        }
    } | {
        _word(zone): {
            **vpc,
            "availability_zone": zone,
            "cidr_block": private_range(cidr, index),
            "tags": {"Name": f"{spec.name}-{zone}", "kubernetes.io/role/internal-elb": "1"},
        }
        for index, zone in enumerate(spec.zones)
    }
    resources["aws_internet_gateway"] = {"network": dict(vpc)}
    resources["aws_eip"] = {
        "nat": {"domain": "vpc", "depends_on": ["aws_internet_gateway.network"]}
    }
    resources["aws_nat_gateway"] = {
        "network": {
            "allocation_id": "${aws_eip.nat.id}",
            "subnet_id": "${aws_subnet.public.id}",
        }
    }
    everywhere = "0.0.0.0/0"
    resources["aws_route_table"] = {"public": dict(vpc), "private": dict(vpc)}
    resources["aws_route"] = {
        "public": {
            "route_table_id": "${aws_route_table.public.id}",
            "destination_cidr_block": everywhere,
            "gateway_id": "${aws_internet_gateway.network.id}",
        },
        "private": {
            "route_table_id": "${aws_route_table.private.id}",
            "destination_cidr_block": everywhere,
            "nat_gateway_id": "${aws_nat_gateway.network.id}",
        },
    }
    resources["aws_route_table_association"] = {
        name: {
            "route_table_id": f"${{aws_route_table.{table}.id}}",
            "subnet_id": f"${{aws_subnet.{name}.id}}",
        }
        for name, table in [("public", "public"), *((_word(z), "private") for z in spec.zones)]
    }


def _add_cluster(spec: ClusterSpec, resources: dict[str, dict[str, Block]]) -> None:
    access: Block = {
        "subnet_ids": [_subnet(spec, zone) for zone in spec.zones],
        "endpoint_private_access": True,
        "endpoint_public_access": bool(spec.public_cidrs),
    }
    if spec.public_cidrs:
        access["public_access_cidrs"] = list(spec.public_cidrs)
    key = spec.kms_key or "${aws_kms_key.cluster.arn}"
    resources["aws_eks_cluster"] = {
        "cluster": {
            "name": spec.name,
            "version": spec.kubernetes_version,
            "role_arn": "${aws_iam_role.cluster.arn}",
            "enabled_cluster_log_types": ["api", "audit", "authenticator"],
            "vpc_config": [access],
            "access_config": [
                {
                    "authentication_mode": "API",
                    "bootstrap_cluster_creator_admin_permissions": True,
                }
            ],
            "encryption_config": [{"provider": [{"key_arn": key}], "resources": ["secrets"]}],
            "depends_on": _attachments("cluster", CLUSTER_POLICIES),
        }
    }


def _add_pool(spec: ClusterSpec, pool: NodePool, resources: dict[str, dict[str, Block]]) -> None:
    word = _word(pool.name)
    if pool.placement_group:
        resources.setdefault("aws_placement_group", {})[word] = {
            "name": f"{spec.name}-{pool.name}",
            "strategy": "cluster",
        }
    if pool.efa:
        _add_fabric(spec, resources)
    template = f"aws_launch_template.{word}"
    resources.setdefault("aws_launch_template", {})[word] = _template(spec, pool)
    resources.setdefault("aws_eks_node_group", {})[word] = {
        "cluster_name": "${aws_eks_cluster.cluster.name}",
        "node_group_name": pool.name,
        "node_role_arn": "${aws_iam_role.node.arn}",
        "subnet_ids": [_subnet(spec, zone) for zone in pool.zones or spec.zones],
        "ami_type": _image(pool),
        "capacity_type": "SPOT" if pool.spot else "ON_DEMAND",
        "instance_types": [pool.instance_type],
        "labels": dict(pool.labels),
        "launch_template": [
            {"id": f"${{{template}.id}}", "version": f"${{{template}.latest_version}}"}
        ],
        "scaling_config": [
            {"desired_size": pool.minimum, "min_size": pool.minimum, "max_size": pool.maximum}
        ],
        "taint": [
            {"key": each.key, "value": each.value, "effect": _EFFECTS[each.effect]}
            for each in pool.all_taints
        ],
        "update_config": [{"max_unavailable": 1}],
        # What an autoscaler chose is not undone by the next plan.
        "lifecycle": [{"ignore_changes": ["scaling_config[0].desired_size"]}],
        "depends_on": _attachments("node", NODE_POLICIES),
    }


def _template(spec: ClusterSpec, pool: NodePool) -> Block:
    tags = spec.all_tags() | {"Name": f"{spec.name}-{pool.name}"}
    found: Block = {
        "name": f"{spec.name}-{pool.name}",
        "update_default_version": True,
        "block_device_mappings": [
            {
                "device_name": "/dev/xvda",
                "ebs": [
                    {
                        "volume_size": pool.disk_gib,
                        "volume_type": "gp3",
                        "encrypted": "true",
                        "delete_on_termination": "true",
                    }
                ],
            }
        ],
        # Pods are kept from the node's own credentials: one hop, and a session token.
        "metadata_options": [
            {
                "http_endpoint": "enabled",
                "http_tokens": "required",
                "http_put_response_hop_limit": 1,
            }
        ],
        "tag_specifications": [
            {"resource_type": kind, "tags": tags} for kind in ("instance", "volume")
        ],
    }
    if pool.placement_group:
        found["placement"] = [{"group_name": f"${{aws_placement_group.{_word(pool.name)}.name}}"}]
    if pool.efa:
        found["network_interfaces"] = [
            {
                "device_index": 0 if card == 0 else 1,
                "network_card_index": card,
                "interface_type": "efa" if card == 0 else "efa-only",
                "delete_on_termination": "true",
                "security_groups": [
                    "${aws_eks_cluster.cluster.vpc_config[0].cluster_security_group_id}",
                    "${aws_security_group.efa.id}",
                ],
            }
            for card in range(EFA_INTERFACES[pool.instance_type])
        ]
    return found


def _add_fabric(spec: ClusterSpec, resources: dict[str, dict[str, Block]]) -> None:
    """Add the group within which EFA talks: everything, to and from itself alone."""
    group = "${aws_security_group.efa.id}"
    itself = {
        "security_group_id": group,
        "referenced_security_group_id": group,
        "ip_protocol": "-1",
    }
    resources["aws_security_group"] = {
        "efa": {
            "name": f"{spec.name}-efa",
            "description": "Elastic Fabric Adapters among themselves",
            "vpc_id": "${aws_eks_cluster.cluster.vpc_config[0].vpc_id}",
        }
    }
    resources["aws_vpc_security_group_ingress_rule"] = {"efa": dict(itself)}
    resources["aws_vpc_security_group_egress_rule"] = {"efa": dict(itself)}


def _image(pool: NodePool) -> str:
    if pool.gpu_count:
        return GPU_IMAGE
    family = pool.instance_type.partition(".")[0]
    # Graviton: a `g` behind the generation, as in m7g, c7gn or r8gd.
    generation = family.lstrip("abcdefghijklmnopqrstuvwxyz").lstrip("0123456789")
    return ARM_IMAGE if generation.startswith("g") else CPU_IMAGE


def _subnet(spec: ClusterSpec, zone: str) -> str:
    return dict(spec.network.subnets).get(zone) or f"${{aws_subnet.{_word(zone)}.id}}"


def _attachments(role: str, policies: tuple[str, ...]) -> list[str]:
    return [f"aws_iam_role_policy_attachment.{role}_{policy.lower()}" for policy in policies]


def _word(name: str) -> str:
    """Return a name that an address can hold; zones and pools begin with a letter."""
    return name.replace("-", "_")
