"""Writes resource groups and their quotas in Kueue's nesting: group, flavor, resource.

Owns the nesting alone; how one quota is written is whoever asks for it to say.

Source: Kueue, API reference, ClusterQueue `spec.resourceGroups`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gpuplane.core.quota.specs import FlavorResource, ResourceGroup, ResourceQuota


def nest_groups(
    groups: Iterable[ResourceGroup],
    quotas: Mapping[FlavorResource, ResourceQuota],
    written: Callable[[str, ResourceQuota], dict[str, Any]],
) -> list[dict[str, Any]]:
    """Return groups with the quotas that there are of each flavor, in the order of the group.

    Args:
        groups: Of a ClusterQueue or Cohort.
        quotas: By flavor and resource; pairs without one are left out.
        written: How the quota of a resource is written, its name among it.
    """
    return [
        {
            "coveredResources": list(group.covered_resources),
            "flavors": [
                {
                    "name": flavor,
                    "resources": [
                        written(name, quotas[FlavorResource(flavor, name)])
                        for name in group.covered_resources
                        if FlavorResource(flavor, name) in quotas
                    ],
                }
                for flavor in group.flavors
            ],
        }
        for group in groups
    ]
