"""Lays graphs of tasks out as steps: nested graphs become steps of the same list, loops LOOP.

A nested graph that only groups (a condition, a pipeline in a pipeline) leaves no trace but the ids
of its steps and their conditions. Tasks that run however others ended come after a PARALLEL that
holds those others and never fails, and before a step that fails if they did.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpuplane.core.imports.kfp.executors import WORKSPACE_PATH, Executors, Site
from gpuplane.core.imports.kfp.passing import (
    Done,
    collected,
    constant_of,
    converted,
    from_outside,
    one_of,
    or_null,
    pick,
    selected,
)
from gpuplane.core.imports.kfp.placeholders import Names
from gpuplane.core.imports.kfp.spec import Component, Spec, Task, read_tasks
from gpuplane.core.imports.naming import Ids
from gpuplane.core.imports.reading import (
    find_seconds,
    mapping,
    sequence,
    shown,
    text,
    whole,
)
from gpuplane.core.imports.results import Malformed, Table
from gpuplane.core.imports.values import (
    Const,
    Expr,
    Value,
    all_of,
    cel_of,
    output_of,
    quoted,
    written,
)

MAX_STEPS = 5_000
MAX_NESTED = 20
MAX_CONTAINERS = 6
"""How deep LOOP and PARALLEL lie within one another; a pipeline takes no more."""
_INPUT = re.compile(r"inputs\.(parameter_values|parameters)\[['\"]([^'\"\]]*)['\"]\]"
                    r"(?:\.(?:string|int|double|bool)_value)?")  # fmt: skip
VERDICT = """\
def main(failed):
    if failed:
        raise RuntimeError("; ".join(f"{name}: {why}" for name, why in sorted(failed.items())))
    return {}
"""


@dataclass(frozen=True, slots=True)
class Scope:
    """Where tasks of one graph go, and what they know.

    Args:
        steps: The list that the steps are put into.
        guards: Conditions that hold for everything here.
        needs: Steps that everything here comes after.
        nested: Components around this one, for recursion.
        containers: How many LOOP and PARALLEL lie around.
    """

    component: Component
    prefix: str
    steps: list[dict[str, Any]]
    parameters: Mapping[str, Value] = field(default_factory=dict)
    artifacts: Mapping[str, Value] = field(default_factory=dict)
    guards: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    nested: tuple[str, ...] = ()
    containers: int = 0


class Graphs:
    """Lays out the graphs of one pipeline."""

    def __init__(self, spec: Spec, executors: Executors, table: Table) -> None:
        """Take the whole pipeline."""
        self._spec, self._executors, self._table = spec, executors, table
        self._ids, self._count, self._loops = Ids(), 0, 0
        self._lists: dict[str, int] = {}  # step → which list it is in
        self._tasks: dict[str, list[Task]] = {}  # of a component, by its place
        self._keeps_files = spec.has_workspace or any(
            (each.artifacts or any(one.kind in ("artifact", "artifacts")
                                   for one in each.inputs.values()))
            and each.dag is None and executors.needs_job(each)
            for each in spec.components.values()
        )  # fmt: skip

    def lay(self, scope: Scope) -> Done:
        """Put the steps of a graph into its list and return what it gives.

        Raises:
            Malformed: If it cannot be read, or has too many steps.
        """
        key = scope.component.place
        if key not in self._tasks:
            self._tasks[key] = read_tasks(scope.component, self._table)
        tasks = self._tasks[key]
        held = self._held(tasks)
        done: dict[str, Done] = {}
        for task in tasks:
            if task.key in held:
                continue  # laid out with the task that runs after it in any case
            if task.is_always and task.after:
                self._lay_always(task, tasks, done, scope)
            else:
                done[task.key] = self._lay_task(task, done, scope)
        return self._given(scope, done)

    def _held(self, tasks: Sequence[Task]) -> set[str]:
        """Return the tasks that lie before one that runs however they ended."""
        by_key = {task.key: task for task in tasks}
        held: set[str] = set()
        for task in tasks:
            if not (task.is_always and task.after):
                continue
            before = _before(task, by_key)
            if before & held or any(by_key[each].is_always for each in before):
                self._table.refused(
                    f"{task.place}.triggerPolicy", "ALL_UPSTREAM_TASKS_COMPLETED",
                    "Several tasks that run in any case share what comes before them.",
                )  # fmt: skip
            held |= before
        for task in tasks:
            if task.key not in held and not task.is_always and held & set(task.after):
                self._table.refused(
                    task.place, "dependentTasks",
                    "It needs a task that another one follows in any case; that cannot be told "
                    "apart here.",
                )  # fmt: skip
        return held

    def _lay_always(
        self, task: Task, tasks: Sequence[Task], done: dict[str, Done], scope: Scope
    ) -> None:
        """Lay out what comes before a task inside a PARALLEL that never fails, then the task."""
        self._check_depth(task, scope)
        by_key = {each.key: each for each in tasks}
        before = _before(task, by_key)
        holder = self._new_id(f"{scope.prefix}before-{task.key}")
        inside = replace(scope, steps=[], guards=(), needs=(), containers=scope.containers + 1)
        inner: dict[str, Done] = {}
        for each in tasks:
            if each.key in before:
                inner[each.key] = self._lay_task(each, inner, inside)
        self._append(scope, {
            "id": holder, "name": f"Before {task.name}", "step_type": "parallel",
            "config": {"branches": [inside.steps], "join": "all", "fail": "never"},
        }, scope.guards, scope.needs)  # fmt: skip
        own = {step["id"] for step in inside.steps}
        for key, laid in inner.items():
            done[key] = Done(
                [holder],
                {name: or_null(from_outside(value, holder, own))
                 for name, value in laid.outputs.items()},
                {name: or_null(from_outside(value, holder, own))
                 for name, value in laid.artifacts.items()},
            )  # fmt: skip
        failed = output_of(holder, "failed")
        done["\0failed"] = Done([holder], {"failed": failed})
        done[task.key] = self._lay_task(task, done, scope)
        verdict = self._new_id(f"{scope.prefix}{task.key}-verdict")
        self._append(scope, {
            "id": verdict, "name": f"Verdict after {task.name}", "step_type": "function",
            "config": {"code": VERDICT, "inputs": {"failed": written(failed)}},
        }, scope.guards, done[task.key].ids)  # fmt: skip
        done[task.key].ids.append(verdict)
        self._table.mapped(
            f"{task.place}.triggerPolicy", "ALL_UPSTREAM_TASKS_COMPLETED",
            f"After {holder}, which completes however its steps end; {verdict} then fails the run "
            "if they failed.",
        )  # fmt: skip

    def _lay_task(self, task: Task, done: Mapping[str, Done], scope: Scope) -> Done:
        component = self._spec.components.get(task.component)
        if component is None:
            raise Malformed(task.place, f"There is no component {task.component!r}.")
        if component.name in scope.nested or len(scope.nested) > MAX_NESTED:
            raise Malformed(task.place, f"The component {component.name!r} contains itself.")
        loop_input = self._loop_input(task)
        parameters = self._parameters(task, component, done, scope, loop_input)
        artifacts = self._artifacts(task, done, scope, loop_input)
        condition = self._condition(task, parameters)
        guards = (*scope.guards, condition) if condition else scope.guards
        needs = tuple(dict.fromkeys(
            (*scope.needs, *(each for key in task.after for each in done[key].ids))
        ))  # fmt: skip
        inside = replace(
            scope, component=component, parameters=parameters, artifacts=artifacts,
            guards=guards, needs=needs, nested=(*scope.nested, component.name),
        )  # fmt: skip
        if loop_input:
            found = self._lay_loop(task, inside, done, scope)
        else:
            found = self._lay_component(task, inside, done)
        found.guard = all_of(guards)
        return found

    def _lay_component(self, task: Task, scope: Scope, done: Mapping[str, Done]) -> Done:
        if scope.component.dag is None:
            return self._lay_step(task, scope, done)
        for name in ("retryPolicy", "cachingOptions"):
            if task.part(name) and name == "retryPolicy":
                self._table.refused(f"{task.place}.{name}", name,
                                    "A group of tasks is not tried again as a whole.")  # fmt: skip
        self._table.mapped(task.place, "nested graph", "Its tasks are steps of this pipeline.")
        before = len(scope.steps)
        found = self.lay(replace(scope, prefix=f"{scope.prefix}{task.key}-"))
        found.ids = [step["id"] for step in scope.steps[before:]]
        return found

    def _lay_step(self, task: Task, scope: Scope, done: Mapping[str, Done]) -> Done:
        step_id = self._new_id(f"{scope.prefix}{task.key}")
        known = done.items() if self._spec.platform else ()
        upstream = {f"{key}.{name}": value for key, each in known
                    for name, value in each.outputs.items()}  # fmt: skip
        made = self._executors.make(scope.component, Site(
            step_id, task.key, task.place, scope.parameters, scope.artifacts, upstream,
            self._keeps_files,
        ))  # fmt: skip
        step: dict[str, Any] = {"id": step_id, "name": task.name[:200], **made.fields}
        self._add_policies(task, step)
        self._append(scope, step, scope.guards, scope.needs)
        return Done([step_id], made.outputs, made.artifacts)

    def _lay_loop(
        self, task: Task, scope: Scope, done: Mapping[str, Done], around: Scope
    ) -> Done:  # fmt: skip
        self._check_depth(task, scope)
        self._loops += 1
        number, name = self._loops, f"item_{self._loops}"
        iterator = task.part("parameterIterator") or task.part("artifactIterator")
        is_artifact = bool(task.part("artifactIterator"))
        place = f"{task.place}.{'artifactIterator' if is_artifact else 'parameterIterator'}"
        over = self._items(iterator, scope, place, is_artifact=is_artifact)
        item_input = text(iterator.get("itemInput"), f"{place}.itemInput")
        kind = scope.component.inputs.get(item_input)
        item: Value = Expr(name)
        if kind is not None and kind.kind == "STRING" and isinstance(over, Const):
            over = Const([each if isinstance(each, str) else json.dumps(each)
                          for each in sequence(over.value, place)])  # fmt: skip
        values = {name: each for name, each in scope.parameters.items() if name != item_input}
        artifacts = {name: each for name, each in scope.artifacts.items() if name != item_input}
        (artifacts if is_artifact else values)[item_input] = item
        loop = self._new_id(f"{scope.prefix}{task.key}")
        inside = replace(
            scope, prefix=f"{scope.prefix}{task.key}-", steps=[], guards=(), needs=(),
            parameters=values, artifacts=artifacts, containers=scope.containers + 1,
        )  # fmt: skip
        if scope.component.dag is None:
            found = self._lay_step(task, inside, done)
        else:
            found = self.lay(inside)
        config: dict[str, Any] = {"over": written(over), "as": name, "steps": inside.steps}
        limit = task.part("iteratorPolicy").get("parallelismLimit")
        if limit:
            config["max_parallel"] = max(whole(limit, f"{task.place}.iteratorPolicy"), 1)
            self._table.mapped(f"{task.place}.iteratorPolicy", "parallelismLimit", "max_parallel")
        step = {"id": loop, "name": task.name[:200], "step_type": "loop", "config": config}
        self._append(scope, step, scope.guards, scope.needs)
        self._table.mapped(place, "ParallelFor", "A LOOP over the items.")
        own = {each["id"] for each in inside.steps}
        return Done(
            [loop],
            {key: collected(value, loop, own, number) for key, value in found.outputs.items()},
            {key: collected(value, loop, own, number) for key, value in found.artifacts.items()},
        )

    def _check_depth(self, task: Task, scope: Scope) -> None:
        if scope.containers >= MAX_CONTAINERS:
            self._table.refused(task.place, "nested loops",
                                f"More than {MAX_CONTAINERS} lie within one another.")  # fmt: skip

    def _loop_input(self, task: Task) -> str:
        for name in ("parameterIterator", "artifactIterator"):
            each = task.part(name)
            if each:
                return text(each.get("itemInput"), f"{task.place}.{name}.itemInput")
        return ""

    def _items(
        self, iterator: Mapping[str, Any], scope: Scope, place: str, *, is_artifact: bool
    ) -> Value:
        items = mapping(iterator.get("items"), f"{place}.items")
        if is_artifact:
            name = text(items.get("inputArtifact"), f"{place}.items.inputArtifact")
            if name not in scope.artifacts:
                raise Malformed(place, f"There is no input artifact {name!r}.")
            return scope.artifacts[name]
        if "raw" in items:
            try:
                found = json.loads(text(items["raw"], f"{place}.items.raw"))
            except (ValueError, RecursionError):
                raise Malformed(f"{place}.items.raw", "This is no JSON.") from None
            names = Names(self._spec.name, "", scope.parameters, {}, {}, WORKSPACE_PATH)
            return names.inside(list(sequence(found, f"{place}.items.raw")), place)
        name = text(items.get("inputParameter"), f"{place}.items.inputParameter")
        if name not in scope.parameters:
            raise Malformed(place, f"There is no input {name!r}.")
        value = scope.parameters[name]
        if isinstance(value, Const):
            sequence(value.value, place)
        return value

    def _parameters(
        self,
        task: Task,
        component: Component,
        done: Mapping[str, Done],
        scope: Scope,
        loop_input: str,
    ) -> dict[str, Value]:
        found: dict[str, Value] = {}
        raw: dict[str, Value] = {}
        for name, each in task.parameters.items():
            place = f"{task.place}.inputs.parameters.{name}"
            value = self._parameter(each, done, scope, place)
            if value is not None:
                raw[name] = value
        names = Names(self._spec.name, task.key, raw, {}, {}, WORKSPACE_PATH)
        for name, value in raw.items():
            place = f"{task.place}.inputs.parameters.{name}"
            found[name] = names.inside(value.value, place) if isinstance(value, Const) else value
            known = component.inputs.get(name)
            if known is not None:
                found[name] = converted(found[name], known.kind)
        for name, known in component.inputs.items():
            if name in found or name == loop_input or known.kind.startswith("artifact"):
                continue
            if known.has_default:
                default = names.inside(known.default, component.place)
                found[name] = converted(default, known.kind)
            elif not known.is_optional and name not in task.artifacts:
                raise Malformed(task.place, f"The input {name!r} of its component is not given.")
        return found

    def _parameter(
        self, each: Mapping[str, Any], done: Mapping[str, Done], scope: Scope, place: str
    ) -> Value | None:
        selector = each.get("parameterExpressionSelector")
        value: Value | None
        if "runtimeValue" in each:
            value = Const(constant_of(mapping(each["runtimeValue"], place), place))
        elif "componentInputParameter" in each:
            value = scope.parameters.get(text(each["componentInputParameter"], place))
        elif "taskOutputParameter" in each:
            source = mapping(each["taskOutputParameter"], place)
            key = text(source.get("outputParameterKey"), place)
            producer = done[text(source.get("producerTask"), place)]
            if key not in producer.outputs:
                raise Malformed(place, f"{source['producerTask']!r} has no output {key!r}.")
            value = producer.outputs[key]
        elif "taskFinalStatus" in each:
            producer_name = text(mapping(each["taskFinalStatus"], place).get("producerTask"), place)
            return self._final_status(producer_name, done, place)
        else:
            raise Malformed(place, "Whence this input comes is not known to the import.")
        if selector and value is not None:
            return selected(value, selector, place)
        return value

    def _final_status(self, producer: str, done: Mapping[str, Done], place: str) -> Value:
        found = done.get("\0failed")
        if found is None:
            raise Malformed(place, "Only a task that runs in any case has the status of others.")
        failed = cel_of(found.outputs["failed"])
        job = f"{quoted(self._spec.name + '-')} + run.id"
        self._table.mapped(
            place,
            "taskFinalStatus",
            "Made of what failed before it: COMPLETE or FAILED, as the backend says.",
        )
        return Expr(
            f'{{ "state": size({failed}) == 0 ? "COMPLETE" : "FAILED", '
            f'"pipelineTaskName": {quoted(producer)}, "pipelineJobResourceName": {job}, '
            f'"error": {{ "message": size({failed}) == 0 ? "" : json.encode({failed}) }} }}'
        )

    def _artifacts(
        self, task: Task, done: Mapping[str, Done], scope: Scope, loop_input: str
    ) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for name, each in task.artifacts.items():
            place = f"{task.place}.inputs.artifacts.{name}"
            if "componentInputArtifact" in each:
                key = text(each["componentInputArtifact"], place)
                if key in scope.artifacts:
                    found[name] = scope.artifacts[key]
            elif "taskOutputArtifact" in each:
                source = mapping(each["taskOutputArtifact"], place)
                key = text(source.get("outputArtifactKey"), place)
                producer = done[text(source.get("producerTask"), place)]
                if key not in producer.artifacts:
                    raise Malformed(place, f"{source['producerTask']!r} makes no {key!r}.")
                found[name] = producer.artifacts[key]
            else:
                raise Malformed(place, "Whence this artifact comes is not known to the import.")
        return found

    def _condition(self, task: Task, parameters: Mapping[str, Value]) -> str:
        policy = task.part("triggerPolicy")
        place = f"{task.place}.triggerPolicy"
        strategy = policy.get("strategy")
        if strategy not in (None, "TRIGGER_STRATEGY_UNSPECIFIED", "ALL_UPSTREAM_TASKS_SUCCEEDED",
                            "ALL_UPSTREAM_TASKS_COMPLETED"):  # fmt: skip
            self._table.refused(place, "strategy", f"{shown(strategy)} is not known.")
        if "condition" not in policy:
            return ""
        condition = text(policy["condition"], f"{place}.condition")

        def value(found: re.Match[str]) -> str:
            if found[2] not in parameters:
                raise Malformed(f"{place}.condition", f"There is no input {found[2]!r}.")
            return cel_of(parameters[found[2]])

        self._table.mapped(place, "condition", "The condition of its steps, in CEL as it was.")
        return _INPUT.sub(value, condition)

    def _add_policies(self, task: Task, step: dict[str, Any]) -> None:
        caching = task.part("cachingOptions")
        if caching.get("enableCache") is True:
            step["cache"] = {"enabled": True}
            if isinstance(caching.get("cacheKey"), str) and caching["cacheKey"]:
                step["cache"]["salt"] = caching["cacheKey"][:200]
            self._table.mapped(f"{task.place}.cachingOptions", "caching", "cache, for a day")
        retry = task.part("retryPolicy")
        if not retry:
            return
        place = f"{task.place}.retryPolicy"
        tries = min(whole(retry.get("maxRetryCount", 0), place) + 1, 100)
        part: dict[str, Any] = {"attempts": max(tries, 1)}
        for theirs, ours in (("backoffDuration", "delay_seconds"),
                             ("backoffMaxDuration", "max_delay_seconds")):  # fmt: skip
            if theirs in retry:
                seconds = find_seconds(retry[theirs])
                if seconds is None:
                    raise Malformed(f"{place}.{theirs}", "A duration should stand here.")
                part[ours] = min(seconds, 86_400.0)
        if "backoffFactor" in retry:
            factor = whole(retry["backoffFactor"], place)
            part["factor"] = min(max(float(factor), 1.0), 10.0)
        step["retry"] = part
        self._table.mapped(place, "retryPolicy", "retry")

    def _given(self, scope: Scope, done: Mapping[str, Done]) -> Done:
        """Return what a graph gives, by what it says of its outputs."""
        place = f"{scope.component.place}.dag.outputs"
        outputs = mapping((scope.component.dag or {}).get("outputs"), place)
        found = Done([])
        for name, raw in mapping(outputs.get("parameters"), f"{place}.parameters").items():
            each = mapping(raw, f"{place}.parameters.{name}")
            one = each.get("valueFromParameter")
            chosen = [one] if one is not None else sequence(
                mapping(each.get("valueFromOneof"), place).get("parameterSelectors"), place
            )  # fmt: skip
            found.outputs[name] = one_of(
                [pick(part, done, "outputParameterKey", f"{place}.parameters.{name}", "outputs")
                 for part in chosen]
            )  # fmt: skip
        for name, raw in mapping(outputs.get("artifacts"), f"{place}.artifacts").items():
            each = mapping(raw, f"{place}.artifacts.{name}")
            found.artifacts[name] = one_of(
                [pick(part, done, "outputArtifactKey", f"{place}.artifacts.{name}", "artifacts")
                 for part in sequence(each.get("artifactSelectors"), place)]
            )  # fmt: skip
        return found

    def _new_id(self, wanted: str) -> str:
        self._count += 1
        if self._count > MAX_STEPS:
            raise Malformed("the pipeline", f"It has more than {MAX_STEPS} steps.")
        return self._ids.new(wanted)

    def _append(
        self, scope: Scope, step: dict[str, Any], guards: Sequence[str], needs: Sequence[str]
    ) -> None:
        here = id(scope.steps)
        self._lists[step["id"]] = here
        after = [each for each in dict.fromkeys(needs) if self._lists.get(each) == here]
        if after:
            step["depends_on"] = after
        if guards:
            step["condition"] = written(Expr(all_of(guards)))
        scope.steps.append(step)


def _before(task: Task, by_key: Mapping[str, Task]) -> set[str]:
    found: set[str] = set()
    left = list(task.after)
    while left:
        key = left.pop()
        if key not in found:
            found.add(key)
            left += by_key[key].after
    return found
