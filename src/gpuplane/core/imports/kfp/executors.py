"""Makes the step of an executor: FUNCTION where that works, else JOB; TRANSFORM for importers."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuplane.core.imports.kfp.lightweight import (
    RUNNER,
    Lightweight,
    find_lightweight,
    function_code,
)
from gpuplane.core.imports.kfp.placeholders import FILES, Names
from gpuplane.core.imports.kfp.platforms import add_platform
from gpuplane.core.imports.kfp.spec import Component, Spec
from gpuplane.core.imports.reading import (
    find_quantity,
    mapping,
    refuse_others,
    sequence,
    shown,
    text,
    texts,
)
from gpuplane.core.imports.results import Containers, Malformed, Table
from gpuplane.core.imports.values import Const, Expr, Value, cel_of, output_of, plain, written
from gpuplane.core.imports.wrapping import ARTIFACT, BOOL, RAW, TASK, TEXT, Output, wrapped

VOLUME = "pipeline-artifacts"
WORKSPACE_VOLUME, WORKSPACE_PATH = "pipeline-workspace", "/kfp-workspace"
PICKED = "{{$}}"
INPUT_MARK = "@EXECUTOR_INPUT@"
GIB = 2.0**30


@dataclass(slots=True)
class Made:
    """A step under construction, and what it gives."""

    fields: dict[str, Any]
    outputs: dict[str, Value] = field(default_factory=dict)
    artifacts: dict[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Site:
    """Where and with what an executor is used.

    Args:
        step: Id of the step.
        task: The task's name, for placeholders.
        place: Of the task in the source.
        keeps_files: Whether artifacts and workspace are files that jobs share, so that no FUNCTION
            can take part in them.
    """

    step: str
    task: str
    place: str
    parameters: Mapping[str, Value]
    artifacts: Mapping[str, Value]
    upstream: Mapping[str, Value]
    """Outputs of other tasks by `task.output`, which a platform may name."""
    keeps_files: bool


class Executors:
    """Makes steps of the executors of one pipeline."""

    def __init__(self, spec: Spec, containers: Containers, table: Table) -> None:
        """Take the whole pipeline."""
        self._spec, self._containers, self._table = spec, containers, table
        self.root = "artifacts" if containers is Containers.PROCESS else "/artifacts"
        self._light: dict[str, Lightweight | None] = {}

    def light(self, label: str) -> Lightweight | None:
        """Return the lightweight component that an executor runs, if it runs one."""
        if label not in self._light:
            place = f"deploymentSpec.executors.{label}"
            found = self._spec.executors.get(label)
            container = mapping((found or {}).get("container"), f"{place}.container")
            command = texts(container.get("command"), f"{place}.container.command")
            arguments = texts(container.get("args"), f"{place}.container.args")
            self._light[label] = find_lightweight(command, arguments)
        return self._light[label]

    def needs_job(self, component: Component) -> str:
        """Return why a component cannot be a FUNCTION; empty if it can."""
        label = component.executor
        found = self._spec.executors.get(label, {})
        if "importer" in found:
            return ""
        light = self.light(label)
        if light is None:
            return "it is a container"
        if light.needs:
            return light.needs
        container = mapping(found.get("container"), label)
        if _has_accelerator(container):
            return "it asks for GPUs"
        if _plain_environment(container) is None:
            return "its environment is computed"
        if any(name in self._spec.platform.get(label, {})
               for name in ("secretAsEnv", "secretAsVolume", "pvcMount", "configMapAsEnv",
                            "configMapAsVolume", "emptyDirMount", "genericEphemeralVolume",
                            "fieldPathAsEnv")):  # fmt: skip
            return "Kubernetes mounts or variables are added to it"
        return ""

    def make(self, component: Component, site: Site) -> Made:
        """Return the step of an executor.

        Raises:
            Malformed: If the executor cannot be read.
        """
        label = component.executor
        place = f"deploymentSpec.executors.{label}"
        if label not in self._spec.executors:
            raise Malformed(component.place, f"There is no executor {label!r}.")
        found = self._spec.executors[label]
        if "importer" in found:
            return self._importer(found["importer"], component, site, f"{place}.importer")
        if "container" not in found:
            for name in found:
                self._table.refused(f"{place}.{name}", name, "There is no such executor here.")
            raise Malformed(place, "An executor is a container or an importer.")
        container = mapping(found["container"], f"{place}.container")
        refuse_others(self._table, container,
                      ("image", "command", "args", "env", "resources", "lifecycle"),
                      f"{place}.container", "a container")  # fmt: skip
        image = text(container.get("image"), f"{place}.container.image")
        if image.startswith("argostub/"):
            return self._volume_claim(image, site)
        light = self.light(label)
        if light is not None and not self.needs_job(component) and not (
            site.keeps_files and (component.artifacts or site.artifacts or self._spec.has_workspace)
        ):  # fmt: skip
            return self._function(light, component, site, place)
        return self._job(light, container, component, site, place)

    def _function(
        self, light: Lightweight, component: Component, site: Site, place: str
    ) -> Made:  # fmt: skip
        kinds = {name: each.kind for name, each in component.inputs.items()}
        env = _plain_environment(
            mapping(self._spec.executors[component.executor]["container"], place)
        )
        code = function_code(light, kinds, component.parameters, component.artifacts, env or {})
        given = {**site.parameters, **site.artifacts}
        config: dict[str, Any] = {
            "code": code, "inputs": {name: written(each) for name, each in given.items()},
            "memory_mb": 512, "timeout_seconds": 3600,
        }  # fmt: skip
        self._table.mapped(
            site.place, "lightweight component",
            "A FUNCTION step: Python's standard library, no network, no files but its own; "
            "artifacts travel in its outputs.",
        )  # fmt: skip
        made = Made({"step_type": "function", "config": config})
        add_platform(
            self._spec.platform.get(component.executor, {}), None,
            {**site.upstream, **site.parameters},
            f"platforms.kubernetes.deploymentSpec.executors.{component.executor}", self._table,
            made.fields,
        )  # fmt: skip
        resources = mapping(
            mapping(self._spec.executors[component.executor]["container"], place).get("resources"),
            f"{place}.container.resources",
        )
        for name in resources:
            self._table.left_out(
                f"{place}.container.resources.{name}", "resources",
                "A FUNCTION has the limits of functions, and reserves nothing.",
            )  # fmt: skip
        names = (*component.parameters, *component.artifacts)
        made.outputs = {each: output_of(site.step, each) for each in component.parameters}
        made.artifacts = {each: output_of(site.step, each) for each in names
                          if each in component.artifacts}  # fmt: skip
        return made

    def _job(
        self,
        light: Lightweight | None,
        container: Mapping[str, Any],
        component: Component,
        site: Site,
        place: str,
    ) -> Made:
        names = Names(
            self._spec.name, site.task, site.parameters, site.artifacts,
            {each: f"{self.root}/{TASK}/{each}" for each in component.artifacts}, WORKSPACE_PATH,
        )  # fmt: skip
        command = self._words(container, names, f"{place}.container")
        if PICKED in command and light is None:
            self._table.refused(
                f"{place}.container",
                "executor input",
                "Only components written in Python are given their whole input.",
            )
        if light is not None:
            command = self._run_lightweight(command, component, site)
            how = f"A JOB in its image, for {self.needs_job(component) or 'it shares files'}."
        else:
            command = wrapped(command, self._outputs(component))
            how = "A JOB; its command runs under sh, which tells its outputs."
        spec: dict[str, Any] = {"command": command}
        if component.artifacts or site.artifacts:
            spec["mounts"] = [{"name": VOLUME, "path": "/artifacts"}]
            self._table.mapped(
                site.place, "artifacts",
                f"Files in the volume {VOLUME}, which the steps share; URIs are paths there.",
            )  # fmt: skip
        if self._spec.has_workspace:
            mount = {"name": WORKSPACE_VOLUME, "path": WORKSPACE_PATH}
            spec["mounts"] = [*spec.get("mounts", []), mount]
        config: dict[str, Any] = {"job_type": "batch", "max_retries": 0, "spec": spec}
        image = names.resolved(str(container["image"]), f"{place}.container.image")
        self._place(config, image, light, place)
        env = {}
        for at, each in enumerate(sequence(container.get("env"), f"{place}.container.env")):
            one = mapping(each, f"{place}.container.env[{at}]")
            name = text(one.get("name"), f"{place}.container.env[{at}].name")
            env[name] = written(names.inside(str(one.get("value", "")), place))
        if env:
            spec["env"] = env
        _add_resources(config, container, names, f"{place}.container.resources", self._table)
        self._table.mapped(site.place, "container", how)
        made = Made({"step_type": "job", "config": config})
        add_platform(
            self._spec.platform.get(component.executor, {}), config,
            {**site.upstream, **site.parameters},
            f"platforms.kubernetes.deploymentSpec.executors.{component.executor}", self._table,
            made.fields,
        )  # fmt: skip
        made.outputs = {each: output_of(site.step, each) for each in component.parameters}
        made.artifacts = {each: output_of(site.step, each) for each in component.artifacts}
        return made

    def _place(
        self,
        config: dict[str, Any],
        image: Value,
        light: Lightweight | None,
        place: str,
    ) -> None:
        """Say in what the command runs: a container of its image, or the machine itself."""
        where = f"{place}.container.image"
        if self._containers is Containers.DOCKER:
            config["deployment_type"] = "docker"
            config["spec"]["image"] = written(image)
            self._table.mapped(where, "image", "A container, on clusters that run containers.")
            return
        config["deployment_type"] = "process"
        if light is not None:
            self._table.refused(
                where, "image",
                "It would install packages into the machine's own Python: import it as containers.",
            )  # fmt: skip
        else:
            self._table.left_out(where, "image", "A process of the machine itself, as asked.")

    def _words(self, container: Mapping[str, Any], names: Names, place: str) -> list[Any]:
        words: list[Any] = []
        for part in ("command", "args"):
            for at, each in enumerate(sequence(container.get(part), f"{place}.{part}")):
                where = f"{place}.{part}[{at}]"
                for value in _structured(each, names, where):
                    words.append(each if value == Const(PICKED) else _argument(value))
        if not words:
            raise Malformed(f"{place}.command", "Without a command it cannot be run as a job.")
        return words

    def _outputs(self, component: Component) -> dict[str, Output]:
        found = {
            name: Output({"STRING": TEXT, "BOOLEAN": BOOL}.get(kind, RAW), f"{FILES}/{name}")
            for name, kind in component.parameters.items()
        }
        for name, schema in component.artifacts.items():
            about = {"name": name, "type": schema}
            found[name] = Output(ARTIFACT, f"{self.root}/{TASK}/{name}", about=about)
        return found

    def _run_lightweight(
        self, command: list[Any], component: Component, site: Site
    ) -> list[Any]:  # fmt: skip
        """Return the component's own command, run by a script that gives it its input."""
        parameters = ", ".join(
            f"{json.dumps(name)}: {cel_of(each)}" for name, each in site.parameters.items()
        )
        taken = []
        for name, each in site.artifacts.items():
            many = component.inputs.get(name)
            inner = cel_of(each) if many and many.kind == "artifacts" else f"[{cel_of(each)}]"
            taken.append(f'{json.dumps(name)}: {{ "artifacts": {inner} }}')
        outputs = {
            "parameters": {
                name: {"outputFile": f"{FILES}/{name}", "type": kind}
                for name, kind in component.parameters.items()
            },
            "artifacts": {
                name: {"artifacts": [{"name": name, "uri": f"{self.root}/{TASK}/{name}",
                                      "type": {"schemaTitle": schema}, "metadata": {}}]}
                for name, schema in component.artifacts.items()
            },
        }  # fmt: skip
        told = (
            f'{{ "inputs": {{ "parameterValues": {{ {parameters} }}, "artifacts": '
            f'{{ {", ".join(taken)} }} }}, "outputs": {cel_of(Const(outputs))} }}'
        )
        rest = [INPUT_MARK if each == PICKED else each for each in command]
        given = written(Expr(f"json.encode({told})"))
        return ["python3", "-c", plain(RUNNER), given, INPUT_MARK, *rest]

    def _importer(self, value: Any, component: Component, site: Site, place: str) -> Made:
        found = mapping(value, place)
        refuse_others(
            self._table, found,
            ("artifactUri", "typeSchema", "metadata", "reimport", "downloadToWorkspace"), place,
            "an importer",
        )  # fmt: skip
        names = Names(self._spec.name, site.task, site.parameters, {}, {}, WORKSPACE_PATH)
        uri = mapping(found.get("artifactUri"), f"{place}.artifactUri")
        if "constant" in uri:
            address = names.inside(uri["constant"], f"{place}.artifactUri")
        else:
            key = text(uri.get("runtimeParameter"), f"{place}.artifactUri.runtimeParameter")
            address = site.parameters.get(key, Const(""))
        schema = mapping(found.get("typeSchema"), f"{place}.typeSchema").get("schemaTitle")
        about = names.inside(mapping(found.get("metadata"), f"{place}.metadata"), place)
        if found.get("downloadToWorkspace"):
            self._table.refused(f"{place}.downloadToWorkspace", "downloadToWorkspace",
                                "Nothing here fetches an object into a volume.")  # fmt: skip
        if found.get("reimport"):
            self._table.left_out(f"{place}.reimport", "reimport",
                                 "Artifacts are not registered, so each run imports.")  # fmt: skip
        self._table.mapped(site.place, "importer",
                           "A TRANSFORM that names the artifact; nothing is fetched.")  # fmt: skip
        artifact = {"name": "artifact", "type": plain(schema or "system.Artifact"),
                    "uri": written(address), "metadata": written(about)}  # fmt: skip
        config = {"input": dict.fromkeys(component.artifacts, artifact), "expression": "input"}
        made = Made({"step_type": "transform", "config": config})
        made.artifacts = {each: output_of(site.step, each) for each in component.artifacts}
        return made

    def _volume_claim(self, image: str, site: Site) -> Made:
        """Make or forget a claim: a volume of a name of its own, kept until somebody removes it."""
        if image.endswith("/createpvc"):
            name: Value = site.parameters.get("pvc_name", Const(""))
            if name == Const(""):
                suffix = cel_of(site.parameters.get("pvc_name_suffix", Const("")))
                name = Expr(f'"run-" + run.id.substring(0, 30) + {suffix}')
            self._table.mapped(site.place, "CreatePVC", "A volume of that name, made when used.")
            config = {"input": {"name": written(name)}, "expression": "input"}
        elif image.endswith("/deletepvc"):
            self._table.left_out(
                site.place, "DeletePVC", "Volumes are kept until one removes them."
            )
            config = {"input": {}, "expression": "input"}
        else:
            raise Malformed(site.place, f"{shown(image)} stands for what is not known here.")
        made = Made({"step_type": "transform", "config": config})
        made.outputs = {"name": output_of(site.step, "name")}
        return made


def _argument(value: Value) -> Any:
    """Return a word of a command: text always."""
    if isinstance(value, Const):
        known = value.value
        return plain(known if isinstance(known, str) else json.dumps(known))
    return written(Expr(f"string({value.cel})"))


def _structured(each: Any, names: Names, place: str) -> list[Value]:
    """Return the words that one stands for: `IfPresent` and `Concat` may give none or several.

    Raises:
        Malformed: If it is neither text nor one of them.
    """
    if isinstance(each, str) and each.startswith(('{"IfPresent"', '{"Concat"')):
        try:
            return _structured(json.loads(each), names, place)
        except (ValueError, RecursionError):
            raise Malformed(place, "This placeholder cannot be read.") from None
    if isinstance(each, dict) and set(each) == {"Concat"}:
        parts = [part for one in sequence(each["Concat"], place)
                 for part in _structured(one, names, place)]  # fmt: skip
        pieces = [cel_of(part) if isinstance(part, Expr) else cel_of(Const(str(part.value)))
                  for part in parts]  # fmt: skip
        if all(isinstance(part, Const) for part in parts):
            return [Const("".join(str(part.value) for part in parts if isinstance(part, Const)))]
        return [Expr(" + ".join(f"string({piece})" for piece in pieces))]
    if isinstance(each, dict) and set(each) == {"IfPresent"}:
        inside = mapping(each["IfPresent"], place)
        chosen = "Then" if names.has_input(str(inside.get("InputName"))) else "Else"
        branch = inside.get(chosen, [])
        many = branch if isinstance(branch, list) else [branch]
        return [word for one in many for word in _structured(one, names, place)]
    if isinstance(each, str):
        return [names.resolved(each, place)]
    if isinstance(each, int | float):
        return [Const(str(each))]
    raise Malformed(place, f"Text should stand here, not {shown(each)}.")


def _plain_environment(container: Mapping[str, Any]) -> dict[str, str] | None:
    """Return a container's variables, or None if one of them is not plain text."""
    found: dict[str, str] = {}
    given = container.get("env") or []
    if not isinstance(given, list):
        return None
    for each in given:
        if not isinstance(each, dict) or not isinstance(each.get("name"), str):
            return None
        value = each.get("value", "")
        if not isinstance(value, str) or "{{$" in value:
            return None
        found[each["name"]] = value
    return found


def _has_accelerator(container: Mapping[str, Any]) -> bool:
    resources = container.get("resources")
    return isinstance(resources, dict) and "accelerator" in resources


def _add_resources(
    config: dict[str, Any], container: Mapping[str, Any], names: Names, place: str, table: Table
) -> None:
    found = mapping(container.get("resources"), place)
    for name, value in found.items():
        where = f"{place}.{name}"
        if name in ("cpuLimit", "cpuRequest", "resourceCpuLimit", "resourceCpuRequest"):
            if name.endswith("Request") or "cpu_cores" not in config:
                config["cpu_cores"] = _quantity(value, 1.0, names, where)
            table.mapped(where, "resources", "cpu_cores")
        elif name in ("memoryLimit", "memoryRequest", "resourceMemoryLimit",
                      "resourceMemoryRequest"):  # fmt: skip
            # The older fields are numbers of GB, the newer ones quantities in bytes.
            unit = GIB if name.startswith("resource") else GIB / 1e9
            if name.endswith("Request") or "memory_gb" not in config:
                config["memory_gb"] = _quantity(value, unit, names, where)
            table.mapped(where, "resources", "memory_gb")
        elif name == "accelerator":
            each = mapping(value, where)
            count = each.get("resourceCount", each.get("count", "1"))
            config["gpu_count"] = _count(count, names, where)
            kind = names.inside(each.get("resourceType", each.get("type", "")), where)
            if kind not in (Const(""), Const("nvidia.com/gpu")):
                config["gpu_type"] = _gpu_type(kind)
            table.mapped(where, "resources", "gpu_count and gpu_type")
        else:
            table.refused(where, "resources", f"{name} is not known to the import.")


def _gpu_type(kind: Value) -> Any:
    if isinstance(kind, Const):
        return str(kind.value).replace("_", "-").lower()
    return written(kind)


def _quantity(value: Any, unit: float, names: Names, place: str) -> Any:
    resolved = names.inside(value, place)
    if isinstance(resolved, Const):
        amount = find_quantity(resolved.value)
        if amount is None:
            raise Malformed(place, f"A quantity should stand here, not {shown(resolved.value)}.")
        return max(round(amount / unit, 3), 0.01)
    cel = f"string({resolved.cel})"
    if unit == 1.0:
        return written(Expr(
            f'({cel}.endsWith("m") ? double({cel}.replace("m", "")) / 1000.0 : double({cel}))'
        ))  # fmt: skip
    plain_text = f'{cel}.replace("i", "").replace("B", "")'
    cases = "".join(
        f'{plain_text}.endsWith("{sign}") ? double({plain_text}.replace("{sign}", "")) * '
        f"{factor!r} : "
        for sign, factor in (("K", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12))
    )
    return written(Expr(f"({cases}double({plain_text})) / {unit!r}"))


def _count(value: Any, names: Names, place: str) -> Any:
    resolved = names.inside(value, place)
    if isinstance(resolved, Const):
        amount = find_quantity(resolved.value)
        if amount is None or amount != int(amount):
            raise Malformed(place, f"A count should stand here, not {shown(resolved.value)}.")
        return int(amount)
    return written(Expr(f"int({resolved.cel})"))
