"""Makes a sequence of containers of what Argo runs in one pod: container sets, init containers.

They share files only through volumes, which the steps share too. What they would share beside, one
network and one life, no step has; a container that others reach while it runs cannot be unfolded.
"""

from collections.abc import Mapping
from typing import Any

from gpuplane.core.imports.ordering import ordered
from gpuplane.core.imports.reading import mapping, scalar, sequence, text
from gpuplane.core.imports.results import Malformed, Table

_SET = ("containers", "volumeMounts", "retryStrategy")


def unfolded(template: Mapping[str, Any], place: str, table: Table) -> Mapping[str, Any]:
    """Return a template with its containers in a sequence, or the template itself if it has one.

    Raises:
        Malformed: If the containers wait for one another.
    """
    if "containerSet" in template:
        found = mapping(template["containerSet"], f"{place}.containerSet")
        for name in found:
            if name not in _SET:
                table.refused(f"{place}.containerSet.{name}", name, "This field is not known here.")
        if found.get("retryStrategy"):
            table.refused(f"{place}.containerSet.retryStrategy", "retryStrategy",
                          "Containers of a set are not tried again together.")  # fmt: skip
        parts = _set(template, found, f"{place}.containerSet.containers")
        table.mapped(f"{place}.containerSet", "containerSet",
                     "A JOB for each container; they share volumes, not a pod.")  # fmt: skip
    elif template.get("initContainers") and ("container" in template or "script" in template):
        parts = _initial(template, f"{place}.initContainers")
        table.mapped(f"{place}.initContainers", "initContainers",
                     "JOBs before the main one; they share volumes, not a pod.")  # fmt: skip
    else:
        return template
    return {**template, "\0sequence": parts}


def _part(
    template: Mapping[str, Any], container: Mapping[str, Any], *, is_main: bool
) -> dict[str, Any]:
    own = {key: each for key, each in container.items()
           if key not in ("name", "dependencies", "mirrorVolumeMounts")}  # fmt: skip
    part: dict[str, Any] = {"container": own}
    for name in ("nodeSelector", "tolerations", "inputs"):
        if name in template:
            part[name] = template[name]
    if is_main and "outputs" in template:
        part["outputs"] = template["outputs"]
    return part


def _set(
    template: Mapping[str, Any], found: Mapping[str, Any], place: str
) -> dict[str, tuple[Mapping[str, Any], tuple[str, ...]]]:
    shared = list(sequence(found.get("volumeMounts"), place))
    left: dict[str, tuple[Mapping[str, Any], tuple[str, ...]]] = {}
    for at, raw in enumerate(sequence(found.get("containers"), place)):
        each = mapping(raw, f"{place}[{at}]")
        name = text(each.get("name"), f"{place}[{at}].name")
        after = tuple(scalar(one, place) for one in sequence(each.get("dependencies"), place))
        mounts = [*shared, *sequence(each.get("volumeMounts"), place)]
        whole = {**each, "volumeMounts": mounts} if mounts else each
        left[name] = (_part(template, whole, is_main=name == "main"), after)
    if not left:
        raise Malformed(place, "There is no container in it.")
    order, circle = ordered({name: after for name, (_, after) in left.items()})
    missing = {each for _, after in left.values() for each in after} - set(left)
    if circle or missing:
        told = ", ".join(sorted(circle) or sorted(missing))
        raise Malformed(place, f"These containers wait for one another, or are not there: {told}.")
    return {name: left[name] for name in order}


def _initial(
    template: Mapping[str, Any], place: str
) -> dict[str, tuple[Mapping[str, Any], tuple[str, ...]]]:
    kind = "container" if "container" in template else "script"
    main = mapping(template[kind], f"{place}.{kind}")
    parts: dict[str, tuple[Mapping[str, Any], tuple[str, ...]]] = {}
    before: tuple[str, ...] = ()
    for at, raw in enumerate(sequence(template["initContainers"], place)):
        each = mapping(raw, f"{place}[{at}]")
        name = f"init-{scalar(each.get('name', at), place)}"
        if each.get("mirrorVolumeMounts") is True:
            each = {**each, "volumeMounts": list(sequence(main.get("volumeMounts"), place))}
        parts[name] = (_part({**template, "inputs": None}, each, is_main=False), before)
        before = (name,)
    whole = {key: each for key, each in template.items() if key != "initContainers"}
    parts["main"] = (whole, before)
    return parts
