"""Maps what the Kubernetes platform adds to an executor: secrets, claims, placement, policies."""

from collections.abc import Mapping
from typing import Any

from gpuplane.core.imports.naming import name_of
from gpuplane.core.imports.reading import mapping, sequence, shown, text
from gpuplane.core.imports.results import Malformed, Table
from gpuplane.core.imports.values import Const, Value, plain, written

LEFT_OUT = {
    "imagePullSecret": "The cluster holds the credentials of registries.",
    "imagePullPolicy": "The cluster decides when an image is fetched.",
    "podMetadata": "Jobs have labels of their own; nothing reads those of pods.",
    "securityContext": "The cluster decides as whom a container runs.",
    "nodeAffinity": "Placement follows what a job asks for; write placement.node_selector.",
    "enabledSharedMemory": "The cluster decides about shared memory.",
}
REFUSED = {
    "secretAsVolume": "A secret is one value here, and the source does not say which keys it has.",
    "configMapAsEnv": "There are no config maps; write the values as env.",
    "configMapAsVolume": "There are no config maps; send files as the working directory.",
    "fieldPathAsEnv": "A job has no fields of a pod; GPUPLANE_JOB_ID and the like are there.",
    "emptyDirMount": "A job writes in its working directory, not at a path of its own choice.",
    "genericEphemeralVolume": "Volumes with a life of one task are not there.",
}


def add_platform(
    found: Mapping[str, Any],
    config: dict[str, Any] | None,
    parameters: Mapping[str, Value],
    place: str,
    table: Table,
    fields: dict[str, Any],
) -> None:
    """Add to a job's config, or to a step's fields, what a platform says of its executor.

    Args:
        found: What the platform says.
        config: Of the JOB step; None for a FUNCTION, which has no pod.
        parameters: The task's inputs.
        place: Of the executor in the source.
        table: Collects rows.
        fields: Of the step.
    """
    for name, value in found.items():
        where = f"{place}.{name}"
        if name == "activeDeadlineSeconds":
            fields["timeout_seconds"] = _seconds(value, where)
            table.mapped(where, name, "timeout_seconds of the step")
        elif name in LEFT_OUT:
            table.left_out(where, name, LEFT_OUT[name])
        elif name in REFUSED:
            _refuse(name, value, where, table)
        elif name in ("nodeSelector", "tolerations"):
            _add_placement(name, value, config, parameters, where, table)
        elif name == "pvcMount" and config is not None:
            for at, each in enumerate(sequence(value, where)):
                _add_mount(mapping(each, where), config, parameters, f"{where}[{at}]", table)
        elif name == "secretAsEnv" and config is not None:
            for at, each in enumerate(sequence(value, where)):
                _add_secret(mapping(each, where), config, parameters, f"{where}[{at}]", table)
        else:
            table.refused(where, name, "This addition is not known to the import.")


def _seconds(value: Any, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str) or not str(value).isdigit():
        raise Malformed(place, f"Seconds should stand here, not {shown(value)}.")
    return max(int(value), 1)


def _refuse(name: str, value: Any, place: str, table: Table) -> None:
    each = value if isinstance(value, list) else [value]
    if each and all(isinstance(one, dict) and one.get("optional") is True for one in each):
        table.left_out(place, name, f"It is optional. {REFUSED[name]}")
    else:
        table.refused(place, name, REFUSED[name])


def _add_placement(
    name: str,
    value: Any,
    config: dict[str, Any] | None,
    parameters: Mapping[str, Value],
    place: str,
    table: Table,
) -> None:
    if config is None:
        table.left_out(place, name, "A FUNCTION runs on no node.")
        return
    placement = config.setdefault("placement", {})
    if name == "nodeSelector":
        each = mapping(value, place)
        if "nodeSelectorJson" in each:
            chosen = _value(each["nodeSelectorJson"], parameters, f"{place}.nodeSelectorJson")
            placement["node_selector"] = written(chosen)
        else:
            placement["node_selector"] = dict(mapping(each.get("labels"), f"{place}.labels"))
        table.mapped(place, name, "placement.node_selector")
        return
    tolerations: list[Any] = []
    for at, one in enumerate(sequence(value, place)):
        each = mapping(one, f"{place}[{at}]")
        if "tolerationJson" in each:
            found = _value(each["tolerationJson"], parameters, f"{place}[{at}]")
            tolerations.append(written(found))
        else:
            tolerations.append({key: part for key, part in each.items() if part not in ("", None)})
    placement["tolerations"] = tolerations
    table.mapped(place, name, "placement.tolerations")


def _add_mount(
    each: Mapping[str, Any],
    config: dict[str, Any],
    parameters: Mapping[str, Value],
    place: str,
    table: Table,
) -> None:
    named = each.get("pvcNameParameter", each)
    value = _value(named, parameters, place)
    if isinstance(value, Const) and isinstance(each.get("constant"), str):
        value = Const(name_of(each["constant"]))
    path = text(each.get("mountPath"), f"{place}.mountPath")
    mounts = config["spec"].setdefault("mounts", [])
    mounts.append({"name": written(value), "path": plain(path)})
    table.mapped(place, "pvcMount", "spec.mounts: a volume of the claim's name")


def _add_secret(
    each: Mapping[str, Any],
    config: dict[str, Any],
    parameters: Mapping[str, Value],
    place: str,
    table: Table,
) -> None:
    name = each.get("secretName")
    if not isinstance(name, str):
        value = _value(each.get("secretNameParameter"), parameters, place)
        if not isinstance(value, Const) or not isinstance(value.value, str):
            table.refused(place, "secretAsEnv", "A secret is named when the pipeline is saved.")
            return
        name = value.value
    secrets = config["spec"].setdefault("secrets", [])
    for at, pair in enumerate(sequence(each.get("keyToEnv"), f"{place}.keyToEnv")):
        found = mapping(pair, f"{place}.keyToEnv[{at}]")
        key = text(found.get("secretKey"), f"{place}.keyToEnv[{at}].secretKey")
        env = text(found.get("envVar"), f"{place}.keyToEnv[{at}].envVar")
        ours = name_of(f"{name}-{key}")
        secrets.append({"name": ours, "env": env})
        table.mapped(f"{place}.keyToEnv[{at}]", "secretAsEnv",
                     f"The project's secret {ours}, which has to be set there.")  # fmt: skip


def _value(found: Any, parameters: Mapping[str, Value], place: str) -> Value:
    """Return a value that a platform takes from the task's inputs.

    Raises:
        Malformed: If it is none of the known kinds.
    """
    each = mapping(found, place)
    if "componentInputParameter" in each:
        return parameters.get(str(each["componentInputParameter"]), Const(""))
    if "constant" in each:
        return Const(each["constant"])
    if "runtimeValue" in each:
        return Const(mapping(each["runtimeValue"], place).get("constant"))
    if "taskOutputParameter" in each:
        source = mapping(each["taskOutputParameter"], place)
        key = f"{source.get('producerTask')}.{source.get('outputParameterKey')}"
        if key in parameters:
            return parameters[key]
    raise Malformed(place, "Whence this value comes is not known to the import.")
