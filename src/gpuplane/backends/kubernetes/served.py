"""What a cluster can do beyond Kubernetes itself: read once, when it is opened."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

NO_ROUTES = "the cluster serves no Routes (route.openshift.io)"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


@dataclass(frozen=True, slots=True)
class Served:
    """What there is.

    Args:
        jobsets: Whether the JobSet kind is served and may be listed.
        keda: Whether KEDA's kinds are served.
        no_routes: Why OpenShift's Routes cannot be made; empty where they can.
        storage_classes: Names of the storage classes.
        default_class: Which of them a claim gets that names none; empty where none does.
    """

    jobsets: bool = False
    keda: bool = False
    storage_classes: frozenset[str] = frozenset()
    default_class: str = ""
    no_routes: str = NO_ROUTES


def read_classes(classes: Iterable[Mapping[str, Any]]) -> tuple[frozenset[str], str]:
    """Return the names of StorageClass objects and that of the default one, empty for none."""
    names: dict[str, bool] = {}
    for each in classes:
        metadata = each["metadata"]
        is_default = (metadata.get("annotations") or {}).get(DEFAULT_CLASS) == "true"
        names[metadata["name"]] = is_default
    return frozenset(names), min((name for name, is_it in names.items() if is_it), default="")
