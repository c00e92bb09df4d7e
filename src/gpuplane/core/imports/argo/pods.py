"""What pods of a workflow share or are placed by: volumes, variables, secrets, node selectors."""

from collections.abc import Mapping
from typing import Any

from gpuplane.core.imports.argo.expressions import Lookup, resolved
from gpuplane.core.imports.argo.spec import Library
from gpuplane.core.imports.naming import name_of
from gpuplane.core.imports.reading import mapping, scalar, sequence, text
from gpuplane.core.imports.results import Containers, Malformed, Table
from gpuplane.core.imports.values import Const, Expr, Value, joined, plain, written


class Pods:
    """Volumes of one workflow, and what a container takes from outside."""

    def __init__(
        self, spec: Mapping[str, Any], library: Library, containers: Containers, table: Table
    ) -> None:
        """Take a workflow's spec."""
        self._spec, self._library, self._table = spec, library, table
        self._containers = containers
        self._volumes = self._volumes_of(spec, "spec")

    def _volumes_of(self, found: Mapping[str, Any], place: str) -> dict[str, Value | str]:
        """Return volumes by name: what they are called here, or why they cannot be there."""
        volumes: dict[str, Value | str] = {}
        where = f"{place}.volumeClaimTemplates"
        for at, raw in enumerate(sequence(found.get("volumeClaimTemplates"), where)):
            metadata = mapping(mapping(raw, f"{where}[{at}]").get("metadata"), f"{where}[{at}]")
            name = text(metadata.get("name"), f"{where}[{at}].metadata.name")
            volumes[name] = _of_run(name)
            self._table.mapped(f"{where}[{at}]", "volumeClaimTemplate", "A volume for each run.")
        for at, raw in enumerate(sequence(found.get("volumes"), f"{place}.volumes")):
            each = mapping(raw, f"{place}.volumes[{at}]")
            name = text(each.get("name"), f"{place}.volumes[{at}].name")
            if "persistentVolumeClaim" in each:
                claim = mapping(each["persistentVolumeClaim"], f"{place}.volumes[{at}]")
                named = text(claim.get("claimName"), f"{place}.volumes[{at}].claimName")
                volumes[name] = Const(name_of(named)) if "{{" not in named else (
                    "Its claim is named when the run is started.")  # fmt: skip
                self._table.mapped(f"{place}.volumes[{at}]", "volume",
                                   "A volume of the claim's name.")  # fmt: skip
            elif "emptyDir" in each:
                volumes[name] = _of_run(name)
                self._table.mapped(f"{place}.volumes[{at}]", "emptyDir",
                                   "A volume for each run.")  # fmt: skip
            else:
                kind = ", ".join(part for part in each if part != "name") or "nothing"
                volumes[name] = f"A volume made of {kind} is not there."
        return volumes

    def add(self, template: Mapping[str, Any], place: str) -> None:
        """Add the volumes that a template has of its own."""
        self._volumes.update(self._volumes_of(template, place))

    def mount(
        self, container: Mapping[str, Any], config: dict[str, Any], lookup: Lookup, place: str
    ) -> None:
        """Add a container's mounts to a job."""
        for at, raw in enumerate(sequence(container.get("volumeMounts"), f"{place}.volumeMounts")):
            where = f"{place}.volumeMounts[{at}]"
            each = mapping(raw, where)
            name = text(each.get("name"), f"{where}.name")
            found = self._volumes.get(name, f"There is no volume {name!r} in the workflow.")
            if isinstance(found, str):
                self._table.refused(where, "volumeMount", found)
                continue
            if each.get("subPath") or each.get("subPathExpr"):
                self._table.refused(where, "subPath", "A volume is mounted as a whole.")
            if self._containers is Containers.PROCESS:
                self._table.refused(
                    where, "volumeMount",
                    "A process finds its volumes in its working directory, not at a path of its "
                    "own choice: import it as containers.",
                )  # fmt: skip
            path = resolved(text(each.get("mountPath"), f"{where}.mountPath"), lookup, where)
            mount: dict[str, Any] = {"name": written(found), "path": written(path)}
            if each.get("readOnly") is True:
                mount["read_only"] = True
            config["spec"].setdefault("mounts", []).append(mount)
            self._table.mapped(where, "volumeMount", "spec.mounts")

    def environment(
        self, container: Mapping[str, Any], config: dict[str, Any], lookup: Lookup, place: str
    ) -> dict[str, Any]:
        """Return a container's variables; those from secrets are added to the job."""
        env: dict[str, Any] = {}
        if container.get("envFrom"):
            self._table.refused(
                f"{place}.envFrom",
                "envFrom",
                "Name each variable: what is behind it is not in the source.",
            )
        for at, raw in enumerate(sequence(container.get("env"), f"{place}.env")):
            where = f"{place}.env[{at}]"
            each = mapping(raw, where)
            name = text(each.get("name"), f"{where}.name")
            source = mapping(each.get("valueFrom"), f"{where}.valueFrom")
            if not source:
                env[name] = written(resolved(scalar(each.get("value"), where), lookup, where))
                continue
            if "secretKeyRef" in source:
                secrets = config["spec"].setdefault("secrets", [])
                secrets.append({"name": self.secret(source, where), "env": name})
            elif "configMapKeyRef" in source:
                env[name] = plain(self.config(source["configMapKeyRef"], where))
            else:
                self._table.refused(where, "env", f"A variable cannot come from "
                                                  f"{', '.join(source)}.")  # fmt: skip
        return env

    def secret(self, source: Any, place: str) -> str:
        """Return the project's secret that stands for a key of a Kubernetes secret.

        Raises:
            Malformed: If it names none.
        """
        key = mapping(mapping(source, place).get("secretKeyRef"), f"{place}.secretKeyRef")
        name = name_of(f"{scalar(key.get('name'), place)}-{scalar(key.get('key'), place)}")
        self._table.mapped(place, "secret",
                           f"The project's secret {name}, which has to be set there.")  # fmt: skip
        return name

    def config(self, source: Any, place: str) -> str:
        """Return the value of a key of a config map that is among the documents.

        Raises:
            Malformed: If it is not.
        """
        key = mapping(source, place)
        values = self._library.configs.get(scalar(key.get("name"), place))
        if values is None or key.get("key") not in values:
            raise Malformed(place, f"The config map {key.get('name')!r} is not in the files that "
                                   "were given.")  # fmt: skip
        self._table.mapped(place, "config map", "Its value is written into the pipeline.")
        return scalar(values[str(key["key"])], place)

    def place_job(
        self, template: Mapping[str, Any], config: dict[str, Any], lookup: Lookup, place: str
    ) -> None:
        """Add what a template and its workflow say of nodes."""
        selector = {**mapping(self._spec.get("nodeSelector"), "spec.nodeSelector"),
                    **mapping(template.get("nodeSelector"), f"{place}.nodeSelector")}  # fmt: skip
        tolerations = [*sequence(self._spec.get("tolerations"), "spec.tolerations"),
                       *sequence(template.get("tolerations"), f"{place}.tolerations")]  # fmt: skip
        placement: dict[str, Any] = {}
        if selector:
            placement["node_selector"] = {
                name: written(resolved(scalar(each, place), lookup, place))
                for name, each in selector.items()
            }
            self._table.mapped(f"{place}.nodeSelector", "nodeSelector", "placement.node_selector")
        if tolerations:
            placement["tolerations"] = [dict(mapping(each, place)) for each in tolerations]
            self._table.mapped(f"{place}.tolerations", "tolerations", "placement.tolerations")
        if placement:
            config["placement"] = placement


def _of_run(name: str) -> Value:
    return joined([Const("run-"), Expr("run.id"), Const(f"-{name_of(name)[:20].strip('-')}")])
