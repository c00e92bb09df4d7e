"""Finds what a call names and gives it: templates here and elsewhere, arguments, hooks."""

from collections.abc import Mapping
from typing import Any

from gpuplane.core.imports.argo.expressions import expression, resolved
from gpuplane.core.imports.argo.fetching import Fetch, find_fetch
from gpuplane.core.imports.argo.fields import TEMPLATE_LEFT_OUT, TEMPLATE_REFUSED, sort_fields
from gpuplane.core.imports.argo.leaves import raw
from gpuplane.core.imports.argo.names import Frame, Workflow
from gpuplane.core.imports.argo.pods import Pods
from gpuplane.core.imports.argo.spec import Library, templates_of
from gpuplane.core.imports.reading import mapping, scalar, sequence, text
from gpuplane.core.imports.results import Malformed, Table
from gpuplane.core.imports.values import Const, Expr, Value, quoted

_CALL = frozenset({"name", "template", "templateRef", "inline", "arguments", "when", "withItems",
                   "withParam", "withSequence", "continueOn", "hooks", "onExit", "depends",
                   "dependencies", "\0tolerated"})  # fmt: skip
_TEMPLATE = frozenset({"name", "inputs", "outputs", "container", "script", "http", "suspend",
                       "steps", "dag", "retryStrategy", "activeDeadlineSeconds", "timeout",
                       "memoize",
                       "synchronization", "nodeSelector", "tolerations", "volumes",
                       "containerSet", "initContainers", "daemon"})  # fmt: skip
_SOURCES = ("s3", "gcs", "azure", "oss", "hdfs", "http", "git", "artifactory", "plugin")


class Calls:
    """Templates of one workflow and of what it refers to."""

    def __init__(
        self,
        spec: Mapping[str, Any],
        place: str,
        library: Library,
        workflow: Workflow,
        pods: Pods,
        table: Table,
    ) -> None:
        """Take a workflow's spec."""
        self._place, self._library, self._workflow = place, library, workflow
        self._pods, self._table = pods, table
        self._own = templates_of(spec, place)
        self._foreign: dict[str, Mapping[str, Mapping[str, Any]]] = {}
        self._seen: set[str] = set()

    def template_of(
        self, call: Mapping[str, Any], place: str, home: str = ""
    ) -> tuple[Mapping[str, Any], str, str]:
        """Return the template that a call names, its key among all, and its place.

        Args:
            call: Names it.
            place: Of the call.
            home: The manifest whose templates it may name without more; empty for the workflow.

        Raises:
            Malformed: If there is none.
        """
        if "inline" in call:
            where = f"{place}.inline"
            self._table.mapped(where, "inline template", "As if it stood among the templates.")
            return mapping(call["inline"], where), where, where
        if "templateRef" in call:
            reference = mapping(call["templateRef"], f"{place}.templateRef")
            manifest = text(reference.get("name"), f"{place}.templateRef.name")
            name = text(reference.get("template"), f"{place}.templateRef.template")
            if manifest not in self._library.templates:
                raise Malformed(f"{place}.templateRef", f"The template {manifest!r} is not in the "
                                                        "files that were given.")  # fmt: skip
            if manifest not in self._foreign:
                spec = self._library.templates[manifest]
                self._foreign[manifest] = templates_of(spec, f"{manifest}.spec")
            templates, where = self._foreign[manifest], f"{manifest}.spec"
        else:
            name = text(call.get("template"), f"{place}.template")
            manifest = home
            templates = self._foreign[home] if home else self._own
            where = f"{home}.spec" if home else self._place
        if name not in templates:
            raise Malformed(place, f"There is no template {name!r}.")
        if "templateRef" in call:
            self._table.mapped(f"{place}.templateRef", "templateRef",
                               "The template is taken from the other manifest.")  # fmt: skip
        return templates[name], f"{manifest}/{name}", f"{where}.templates.{name}"

    def check_call(self, call: Mapping[str, Any], place: str) -> None:
        """Refuse the fields of a call that nothing here handles."""
        for name in call:
            if name not in _CALL:
                self._table.refused(f"{place}.{name}", name, "This field is not known here.")

    def check_template(self, template: Mapping[str, Any], place: str) -> None:
        """Note the fields of a template that nothing here handles, once."""
        if place in self._seen:
            return
        self._seen.add(place)
        sort_fields(self._table, template, place, _TEMPLATE, TEMPLATE_LEFT_OUT, TEMPLATE_REFUSED)
        self._pods.add(template, place)
        if "steps" in template or "dag" in template:
            for name in ("retryStrategy", "memoize", "synchronization", "timeout",
                         "activeDeadlineSeconds"):  # fmt: skip
                if template.get(name):
                    self._table.refused(
                        f"{place}.{name}",
                        name,
                        "It is understood of a single step, not of a group.",
                    )

    def exit_hook(self, call: Mapping[str, Any], place: str) -> Mapping[str, Any] | None:
        """Return what a call runs when it is over in any case, if anything."""
        found: Mapping[str, Any] | None = None
        if call.get("onExit"):
            found = {"template": call["onExit"]}
        for name, each in mapping(call.get("hooks"), f"{place}.hooks").items():
            hook = mapping(each, f"{place}.hooks.{name}")
            if name == "exit" and "expression" not in hook:
                found = hook
            else:
                self._table.refused(
                    f"{place}.hooks.{name}",
                    "lifecycle hook",
                    "Only what runs at the end is understood; use conditions.",
                )
        return found

    def inputs(
        self,
        template: Mapping[str, Any],
        call: Mapping[str, Any],
        frame: Frame,
        place: str,
        where: str,
    ) -> tuple[dict[str, Value], dict[str, Value | Fetch]]:
        """Return the inputs of a template as the call and its own defaults give them.

        Raises:
            Malformed: If one is missing.
        """
        arguments = mapping(call.get("arguments"), f"{place}.arguments")
        given = _by_name(arguments, "parameters", f"{place}.arguments")
        wanted = mapping(template.get("inputs"), f"{where}.inputs")
        values: dict[str, Value] = {}
        at_home = Frame(self._workflow, item=frame.item)
        for name, each in _by_name(wanted, "parameters", f"{where}.inputs").items():
            here = f"{place}.arguments.parameters.{name}"
            value = self._parameter(given[name], frame, here) if name in given else None
            for source in ("value", "default"):
                if value is None and each.get(source) is not None:
                    value = resolved(scalar(each[source], where), at_home, where)
            if value is None and each.get("valueFrom"):
                value = self._parameter(each, at_home, f"{where}.inputs.parameters.{name}")
            if value is None:
                raise Malformed(here, f"The input {name!r} of the template is not given.")
            if each.get("default") is not None and isinstance(value, Expr):
                other = resolved(scalar(each["default"], where), at_home, where)
                if isinstance(other, Const):
                    value = Expr(f"({value.cel}) | default({quoted(str(other.value))})")
            values[name] = value
        return values, self._artifacts(arguments, wanted, frame, place, where)

    def _parameter(
        self, each: Mapping[str, Any], frame: Frame, place: str
    ) -> Value | None:  # fmt: skip
        if each.get("value") is not None:
            return resolved(scalar(each["value"], place), frame, place)
        source = mapping(each.get("valueFrom"), f"{place}.valueFrom")
        if "expression" in source:
            return Expr(f"string({expression(scalar(source['expression'], place), frame, place)})")
        if "configMapKeyRef" in source:
            return Const(self._pods.config(source["configMapKeyRef"], place))
        if "parameter" in source:
            return resolved(scalar(source["parameter"], place), frame, place)
        if source:
            raise Malformed(place, f"A parameter cannot come from {', '.join(source)}.")
        return None

    def _artifacts(
        self,
        arguments: Mapping[str, Any],
        wanted: Mapping[str, Any],
        frame: Frame,
        place: str,
        where: str,
    ) -> dict[str, Value | Fetch]:
        given = _by_name(arguments, "artifacts", f"{place}.arguments")
        found: dict[str, Value | Fetch] = {}
        for name, each in _by_name(wanted, "artifacts", f"{where}.inputs").items():
            here = f"{place}.arguments.artifacts.{name}"
            source = {**each, **given.get(name, {})}
            if source.get("from"):
                if frame.workflow is not None:
                    found[name] = self.artifact(str(source["from"]), frame, here)
            elif "fromExpression" in source:
                found[name] = Expr(
                    expression(scalar(source["fromExpression"], here), frame.any, here)
                )  # fmt: skip
            elif "raw" in source:
                data = mapping(source["raw"], f"{here}.raw").get("data")
                found[name] = raw(resolved(scalar(data, here), frame, here))
            elif (fetch := find_fetch(source, frame, here)) is not None:
                found[name] = fetch
            elif any(part in source for part in _SOURCES):
                kind = next(part for part in _SOURCES if part in source)
                self._table.refused(
                    f"{here}.{kind}", "input artifact",
                    f"Nothing here fetches from {kind}; fetch it in the command, its "
                    "credentials as secrets of the job.",
                )  # fmt: skip
            elif not source.get("optional"):
                raise Malformed(here, f"The input artifact {name!r} is not given.")
        return found

    def artifact(self, source: str, frame: Frame, place: str) -> Value:
        """Return the place of an artifact that `{{…}}` names.

        Raises:
            Malformed: If it names none.
        """
        name = source.strip().removeprefix("{{").removesuffix("}}").strip()
        try:
            return frame.artifact(name)
        except Malformed as error:
            raise Malformed(place, error.reason) from None

    def paths(self, template: Mapping[str, Any], where: str) -> dict[str, str]:
        """Return what `inputs.artifacts.x.path` and the like come to inside a template."""
        found: dict[str, str] = {}
        for side in ("inputs", "outputs"):
            part = mapping(template.get(side), f"{where}.{side}")
            for name, each in _by_name(part, "artifacts", f"{where}.{side}").items():
                if isinstance(each.get("path"), str):
                    found[f"{side}.artifacts.{name}"] = each["path"]
            for name, each in _by_name(part, "parameters", f"{where}.{side}").items():
                source = each.get("valueFrom")
                if isinstance(source, dict) and isinstance(source.get("path"), str):
                    found[f"{side}.parameters.{name}"] = source["path"]
        return found

    def keep_globals(
        self,
        template: Mapping[str, Any],
        outputs: Mapping[str, Value],
        artifacts: Mapping[str, Value],
        place: str,
    ) -> None:
        """Remember outputs that have a name for the whole workflow."""
        given = mapping(template.get("outputs"), f"{place}.outputs")
        for kind, known, kept in (("parameters", outputs, self._workflow.outputs),
                                  ("artifacts", artifacts, self._workflow.artifacts)):  # fmt: skip
            for name, each in _by_name(given, kind, f"{place}.outputs").items():
                if each.get("globalName") and name in known:
                    kept[str(each["globalName"])] = known[name]
                    self._table.mapped(f"{place}.outputs.{kind}.{name}", "globalName",
                                       "Known to the steps after it.")  # fmt: skip


def _by_name(found: Mapping[str, Any], kind: str, place: str) -> dict[str, Mapping[str, Any]]:
    named: dict[str, Mapping[str, Any]] = {}
    for at, each in enumerate(sequence(found.get(kind), f"{place}.{kind}")):
        one = mapping(each, f"{place}.{kind}[{at}]")
        named[scalar(one.get("name"), f"{place}.{kind}[{at}].name")] = one
    return named
