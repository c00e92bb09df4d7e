"""Turns an Argo manifest into a pipeline document."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpuplane.core.imports.argo.calls import Calls
from gpuplane.core.imports.argo.fields import WORKFLOW_LEFT_OUT, WORKFLOW_REFUSED, sort_fields
from gpuplane.core.imports.argo.flows import Flows, Spot
from gpuplane.core.imports.argo.leaves import Leaves
from gpuplane.core.imports.argo.names import Done, Frame, Workflow
from gpuplane.core.imports.argo.pods import Pods
from gpuplane.core.imports.argo.policies import find_limit
from gpuplane.core.imports.argo.spec import (
    Source,
    merged,
    read_library,
    read_source,
    templates_of,
)
from gpuplane.core.imports.naming import name_of, word_of
from gpuplane.core.imports.reading import find_seconds, mapping, scalar, sequence, whole
from gpuplane.core.imports.results import Containers, Malformed, Table
from gpuplane.core.imports.values import (
    Const,
    Expr,
    Value,
    cel_of,
    member,
    output_of,
    plain,
    steps_in,
    written,
)

_AT_START = re.compile(r"\s*workflow\.status\s*==\s*['\"](Running|Pending)['\"]\s*")
_RESULT = re.compile(
    r"(?:steps|tasks)(?:\.([\w-]+)|\[\s*['\"]([^'\"]+)['\"]\s*\])\.outputs\.result"
)
_WORKFLOW = frozenset({"entrypoint", "templates", "arguments", "onExit", "hooks", "volumes",
                       "volumeClaimTemplates", "nodeSelector", "tolerations", "parallelism",
                       "activeDeadlineSeconds", "synchronization", "retryStrategy",
                       "workflowTemplateRef"})  # fmt: skip
_CRON = frozenset({"workflowSpec", "schedule", "schedules", "timezone", "concurrencyPolicy",
                   "suspend", "startingDeadlineSeconds"})  # fmt: skip
_CRON_LEFT_OUT = {
    "successfulJobsHistoryLimit": "Runs are kept as the server's settings say.",
    "failedJobsHistoryLimit": "Runs are kept as the server's settings say.",
    "workflowMetadata": "Labels are the pipeline's own.",
}
_CRON_REFUSED = {
    "when": "A schedule fires by its cron expression alone; use a condition on the first step.",
    "stopStrategy": "A schedule is stopped by hand.",
}


def translate(
    documents: Sequence[Any], others: Sequence[Any], containers: Containers, table: Table
) -> dict[str, Any]:
    """Return the pipeline document of the first manifest that runs something.

    Args:
        documents: Of the file.
        others: Further documents that templates and config maps are taken from.
        containers: How containers become jobs.
        table: Collects rows.

    Raises:
        Malformed: If there is nothing to run, or it cannot be read.
    """
    library = read_library([*documents, *others])
    source = read_source(documents, library, table)
    spec = merged(source, library, table)
    sort_fields(table, spec, source.place, _WORKFLOW, WORKFLOW_LEFT_OUT, WORKFLOW_REFUSED)
    pods = Pods(spec, library, containers, table)
    parameters, given = _parameters(spec, pods, source.place, table)
    workflow = Workflow(
        name_of(source.name), given, _texts(source.metadata.get("labels")),
        _texts(source.metadata.get("annotations")),
    )  # fmt: skip
    leaves = Leaves(pods, containers, table, _calls_read([*documents, *others]))
    calls = Calls(spec, source.place, library, workflow, pods, table)
    flows = Flows(workflow, calls, leaves, table)
    steps: list[dict[str, Any]] = []
    document: dict[str, Any] = {"parameters": parameters}
    done = _lay(source, spec, workflow, calls, flows, Spot(steps), document, table)
    described = _texts(source.metadata.get("annotations")).get("workflows.argoproj.io/description")
    if described:
        document["description"] = plain(described[:60_000])
    for name in sorted(workflow.asked):
        document["parameters"].setdefault(word_of(name), {"type": "string", "required": True})
        table.mapped(
            f"{source.place}.arguments.parameters",
            "parameter",
            f"{name} is read and not declared: whoever starts a run gives it.",
        )
    if not document["parameters"]:
        del document["parameters"]
    _add_limits(document, spec, workflow, source.place, table)
    _add_triggers(document, source, table)
    document["steps"] = steps
    outputs = {**workflow.outputs, **done.outputs}
    if outputs and not workflow.failed:
        document["outputs"] = {word_of(name): written(each) for name, each in outputs.items()
                               if _is_outside(each, steps)}  # fmt: skip
    if not document.get("outputs", True):
        del document["outputs"]
    return {
        "apiVersion": "gpuplane.io/v1", "kind": "Pipeline",
        "metadata": {"name": name_of(source.name)}, "spec": document,
    }  # fmt: skip


def _lay(
    source: Source,
    spec: Mapping[str, Any],
    workflow: Workflow,
    calls: Calls,
    flows: Flows,
    spot: Spot,
    document: dict[str, Any],
    table: Table,
) -> Done:
    """Lay out the entry point, and what runs when the workflow is over."""
    place = f"{source.place}.entrypoint"
    entry = spec.get("entrypoint")
    if not entry:
        known = list(templates_of(spec, source.place))
        if len(known) != 1:
            raise Malformed(place, "It has several templates and no entrypoint.")
        entry = known[0]
    own = mapping(spec.get("arguments"), f"{source.place}.arguments")
    own = _with_missing(own, entry, calls, workflow, document, table)
    call = {"name": "main", "template": entry, "arguments": own}
    frame = Frame(workflow)
    hooks = dict(mapping(spec.get("hooks"), f"{source.place}.hooks"))
    for name, raw in list(hooks.items()):
        each = mapping(raw, f"{source.place}.hooks.{name}")
        if _AT_START.fullmatch(str(each.get("expression", ""))):
            del hooks[name]
            started = {key: part for key, part in each.items() if key != "expression"}
            flows.lay({"name": f"hook-{name}", **started}, frame, spot, f"{source.place}.hooks")
            table.mapped(
                f"{source.place}.hooks.{name}",
                "lifecycle hook",
                "A step beside the first, for it runs when the workflow does.",
            )
    hook = calls.exit_hook({"onExit": spec.get("onExit"), "hooks": hooks}, source.place)
    if hook is None:
        return flows.lay(call, frame, spot, place)
    done, failed = flows.hold_all(
        lambda inside: flows.lay(call, frame, inside, place), spot, "workflow"
    )
    workflow.failed = failed
    needs = tuple(done.ids)
    if _names([*spec.values()], "workflow.duration"):
        clock = flows.clock(Spot(spot.steps, needs=needs))
        workflow.duration, needs = cel_of(output_of(clock, "seconds")), (clock,)
    after = flows.lay(
        {"name": "on-exit", **hook}, Frame(workflow),
        Spot(spot.steps, needs=needs), f"{source.place}.onExit",
    )  # fmt: skip
    flows.verdict(failed, Spot(spot.steps, needs=tuple(done.ids)), tuple(after.ids))
    table.mapped(f"{source.place}.onExit", "onExit", "Steps after a PARALLEL that never fails; the "
                 "last one fails the run if the workflow failed.")  # fmt: skip
    return done


def _with_missing(
    own: Mapping[str, Any],
    entry: Any,
    calls: Calls,
    workflow: Workflow,
    document: dict[str, Any],
    table: Table,
) -> Mapping[str, Any]:
    """Return the arguments of the entry point; inputs that nobody gives become parameters."""
    template, _, where = calls.template_of({"template": entry}, "the entry point")
    inputs = mapping(template.get("inputs"), f"{where}.inputs")
    given = list(sequence(own.get("parameters"), "arguments"))
    known = {mapping(each, "arguments").get("name") for each in given}
    parameters = dict(workflow.parameters)
    for at, raw in enumerate(sequence(inputs.get("parameters"), f"{where}.inputs.parameters")):
        each = mapping(raw, f"{where}.inputs.parameters[{at}]")
        name = scalar(each.get("name"), f"{where}.inputs.parameters[{at}].name")
        if name in known or any(each.get(part) is not None for part in
                                ("value", "default", "valueFrom")):  # fmt: skip
            continue
        parameters[name] = Expr(f"params{member(word_of(name))}")
        document["parameters"][word_of(name)] = {"type": "string", "required": True}
        given.append({"name": name, "value": f"{{{{workflow.parameters.{name}}}}}"})
        table.mapped(f"{where}.inputs.parameters[{at}]", "parameter",
                     "A parameter of the pipeline, for the workflow does not give it.")  # fmt: skip
    workflow.parameters = parameters
    return {**own, "parameters": given}


def _parameters(
    spec: Mapping[str, Any], pods: Pods, place: str, table: Table
) -> tuple[dict[str, Any], dict[str, Value]]:
    """Return the pipeline's parameters, and what they are to the workflow: always text."""
    found: dict[str, Any] = {}
    given: dict[str, Value] = {}
    arguments = mapping(spec.get("arguments"), f"{place}.arguments")
    where = f"{place}.arguments.parameters"
    for at, raw in enumerate(sequence(arguments.get("parameters"), where)):
        each = mapping(raw, f"{where}[{at}]")
        name = scalar(each.get("name"), f"{where}[{at}].name")
        one: dict[str, Any] = {"type": "string"}
        default = each.get("value", each.get("default"))
        source = mapping(each.get("valueFrom"), f"{where}[{at}].valueFrom")
        if default is None and "configMapKeyRef" in source:
            default = pods.config(source["configMapKeyRef"], f"{where}[{at}]")
        elif default is None and "default" in source:
            default = source["default"]
        if default is None:
            one["required"] = True
        elif "{{" in (known := scalar(default, f"{where}[{at}].value")):
            raise Malformed(f"{where}[{at}].value", "A default that is computed is not there.")
        else:
            one["default"] = known
        if isinstance(each.get("enum"), list):
            one["enum"] = [scalar(part, where) for part in each["enum"]]
        if isinstance(each.get("description"), str):
            one["description"] = plain(each["description"])
        found[word_of(name)] = one
        given[name] = Expr(f"params{member(word_of(name))}")
        table.mapped(f"{where}[{at}]", "parameter", "A parameter, which is text.")
    return found, given


def _add_limits(
    document: dict[str, Any],
    spec: Mapping[str, Any],
    workflow: Workflow,
    place: str,
    table: Table,
) -> None:
    if spec.get("parallelism"):
        count = whole(spec["parallelism"], f"{place}.parallelism")
        document["max_parallel"] = min(max(count, 1), 10_000)
        table.mapped(f"{place}.parallelism", "parallelism", "max_parallel")
    if spec.get("activeDeadlineSeconds"):
        seconds = find_seconds(spec["activeDeadlineSeconds"])
        if not seconds:
            raise Malformed(f"{place}.activeDeadlineSeconds", "Seconds should stand here.")
        document["timeout_seconds"] = seconds
        table.mapped(f"{place}.activeDeadlineSeconds", "activeDeadlineSeconds", "timeout_seconds")
    if spec.get("synchronization"):
        where = f"{place}.synchronization"
        limit = find_limit(spec["synchronization"], where, table)
        if limit is not None:
            document["concurrency"] = {"key": plain(limit[0]), "limit": limit[1]}
    if spec.get("retryStrategy"):
        table.refused(
            f"{place}.retryStrategy",
            "retryStrategy",
            "A run is not tried again as a whole; rerun it from its failure.",
        )


def _add_triggers(document: dict[str, Any], source: Source, table: Table) -> None:
    cron = source.cron
    if not cron:
        return
    sort_fields(table, cron, "spec", _CRON, _CRON_LEFT_OUT, _CRON_REFUSED)
    schedules = [*sequence(cron.get("schedules"), "spec.schedules")]
    if cron.get("schedule"):
        schedules.append(cron["schedule"])
    triggers = []
    for each in schedules:
        trigger: dict[str, Any] = {"type": "scheduled", "cron": scalar(each, "spec.schedules"),
                                   "catch_up": "none"}  # fmt: skip
        if cron.get("timezone"):
            trigger["time_zone"] = scalar(cron["timezone"], "spec.timezone")
        if cron.get("startingDeadlineSeconds"):
            trigger["catch_up"] = "last"
        if cron.get("suspend") is True:
            trigger["enabled"] = False
        triggers.append(trigger)
    if not triggers:
        raise Malformed("spec.schedules", "A cron workflow has a schedule.")
    document["triggers"] = triggers
    table.mapped("spec.schedules", "schedule", "A scheduled trigger for each.")
    policy = cron.get("concurrencyPolicy") or "Allow"
    if policy == "Forbid":
        document.setdefault("concurrency", {"key": "cron", "limit": 1})
        table.mapped("spec.concurrencyPolicy", "concurrencyPolicy",
                     "concurrency: a run waits for the one before.")  # fmt: skip
    elif policy == "Replace":
        document.setdefault("concurrency", {"key": "cron", "limit": 1})
        table.left_out(
            "spec.concurrencyPolicy",
            "concurrencyPolicy",
            "A run is not ended because the next one is due: that one waits.",
        )


def _texts(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    return {str(key): str(each) for key, each in value.items() if isinstance(each, str | int)}


def _calls_read(values: Sequence[Any]) -> frozenset[str]:
    """Return the calls whose printed result some text names; nobody keeps that of others."""
    return frozenset(
        one or two for text in _texts_in(values) for one, two in _RESULT.findall(text)
    )  # fmt: skip


def _names(values: Sequence[Any], name: str) -> bool:
    """Return whether any text among values holds a name."""
    return any(name in each for each in _texts_in(values))


def _texts_in(values: Sequence[Any]) -> Iterator[str]:
    left: list[Any] = list(values)
    while left:
        each = left.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, dict):
            left += each.values()
        elif isinstance(each, list):
            left += each


def _is_outside(value: Value, steps: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a value can be read where the pipeline's outputs are."""
    if isinstance(value, Const):
        return True
    return steps_in(value.cel) <= {str(each["id"]) for each in steps}
