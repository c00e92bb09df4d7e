"""Lays templates out as steps: `steps` and `dag` become steps of one list, loops become LOOP.

A call whose failure others look at (`continueOn`, an exit hook, `depends` on a failure) is put
into a PARALLEL that never fails, so that what comes after it runs; where Argo would fail the
workflow all the same, a step after that does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from gpuplane.core.imports.argo.calls import Calls
from gpuplane.core.imports.argo.depending import Depends, read_depends
from gpuplane.core.imports.argo.expressions import condition, expression, resolved
from gpuplane.core.imports.argo.fetching import Fetch
from gpuplane.core.imports.argo.leaves import Leaves, Use
from gpuplane.core.imports.argo.loops import NAMES as LOOPS
from gpuplane.core.imports.argo.loops import find_items
from gpuplane.core.imports.argo.names import Done, Frame, Workflow
from gpuplane.core.imports.argo.policies import add_policies
from gpuplane.core.imports.argo.unfolding import unfolded
from gpuplane.core.imports.naming import Ids
from gpuplane.core.imports.ordering import ordered
from gpuplane.core.imports.reading import mapping, scalar, sequence, text
from gpuplane.core.imports.results import Malformed, Table
from gpuplane.core.imports.values import (
    Const,
    Expr,
    Value,
    all_of,
    cel_of,
    member,
    moved,
    output_of,
    pairs_of,
    quoted,
    steps_in,
    written,
)

MAX_STEPS = 5_000
_JSON = r'''"(?s)^\\s*(\\x7b.*\\x7d|\\[.*\\]|\".*\"|-?[0-9]+(\\.[0-9]+)?|true|false|null)\\s*$"'''
"""Pattern, as CEL writes it, of a text that looks like one value of JSON."""
MAX_NESTED = 20
MAX_CONTAINERS = 6
VERDICT = """\
def main(failed):
    if failed:
        raise RuntimeError("; ".join(f"{name}: {why}" for name, why in sorted(failed.items())))
    return {}
"""
CLOCK = """\
import datetime, time

def main(started):
    if started.isdigit():
        since = int(started) / 1000
    else:
        since = datetime.datetime.fromisoformat(started.replace("Z", "+00:00")).timestamp()
    return {"seconds": f"{max(time.time() - since, 0.0):.6f}"}
"""


@dataclass(frozen=True, slots=True)
class Spot:
    """Where steps go: the list, the beginning of their ids, what they come after and when they run.

    Args:
        nested: Templates around, for recursion.
        containers: How many LOOP and PARALLEL lie around.
        home: The manifest whose template this is; empty for the workflow itself.
    """

    steps: list[dict[str, Any]]
    prefix: str = ""
    guards: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    nested: tuple[str, ...] = ()
    containers: int = 0
    home: str = ""


class Flows:
    """Lays out the templates of one workflow."""

    def __init__(
        self, workflow: Workflow, calls: Calls, leaves: Leaves, table: Table
    ) -> None:  # fmt: skip
        """Take the workflow."""
        self._workflow, self._calls, self._leaves, self._table = workflow, calls, leaves, table
        self._ids, self._count, self._loops = Ids(), 0, 0
        self._lists: dict[str, int] = {}  # step → which list it is in

    def lay(self, call: Mapping[str, Any], frame: Frame, spot: Spot, place: str) -> Done:
        """Put the steps of a call into the spot's list.

        Args:
            call: Names a template, with arguments, conditions, loops.
            frame: What the caller knows.
            spot: Where the steps go.
            place: Of the call in the source.

        Raises:
            Malformed: If it cannot be read.
        """
        hook = self._calls.exit_hook(call, place)
        if hook is None and not call.get("continueOn") and not call.get("\0tolerated"):
            return self._lay_call(call, frame, spot, place)
        name = scalar(call.get("name") or "call", place)
        inside = replace(spot, steps=[], guards=(), needs=(), containers=spot.containers + 1)
        self._check_depth(inside, place)
        held = self._lay_call(call, frame, inside, place)
        done, failed = self._hold(held, inside, spot, f"{spot.prefix}{name}-held", name)
        on = mapping(call.get("continueOn"), f"{place}.continueOn")
        if on:
            self._table.mapped(f"{place}.continueOn", "continueOn",
                               "A PARALLEL that never fails holds the step.")  # fmt: skip
        if hook is not None:
            known = replace(frame, siblings={**frame.siblings, name: done})
            self._lay_hook(hook, done, failed, known,
                           replace(spot, needs=tuple(done.ids)), place,
                           fails=not (on or call.get("\0tolerated")))  # fmt: skip
        return done

    def _lay_hook(
        self,
        hook: Mapping[str, Any],
        done: Done,
        failed: str,
        frame: Frame,
        spot: Spot,
        place: str,
        *,
        fails: bool,
    ) -> None:
        around = replace(frame, workflow=replace(self._workflow, failed=failed))
        after = self._lay_call(
            {"name": "exit", **hook},
            around,
            replace(spot, prefix=f"{done.ids[-1]}-"),
            f"{place}.exit",
        )
        self._table.mapped(f"{place}.hooks.exit", "exit hook", "Steps after it, run in any case.")
        if fails:
            verdict = self.verdict(failed, spot, tuple(after.ids))
            done.ids.append(verdict)
        done.ids.extend(after.ids)

    def verdict(self, failed: str, spot: Spot, needs: Sequence[str]) -> str:
        """Put a step that fails if something failed before it; return its id."""
        verdict = self._new_id(f"{spot.prefix}verdict")
        self._append({
            "id": verdict, "name": "Verdict", "step_type": "function",
            "config": {"code": VERDICT, "inputs": {"failed": written(Expr(failed))}},
        }, replace(spot, needs=(*spot.needs, *needs)))  # fmt: skip
        return verdict

    def clock(self, spot: Spot) -> str:
        """Put a step that tells how many seconds the run took so far; return its id."""
        clock = self._new_id("workflow-duration")
        self._append({
            "id": clock, "name": "Duration of the workflow", "step_type": "function",
            "config": {"code": CLOCK, "inputs": {"started": "{{ string(run.started_at) }}"}},
        }, spot)  # fmt: skip
        return clock

    def _hold(
        self, held: Done, inside: Spot, spot: Spot, wanted: str, name: str
    ) -> tuple[Done, str]:
        """Put steps into a PARALLEL that never fails; return them as seen after it."""
        holder = self._new_id(wanted)
        self._append({
            "id": holder, "name": name[:200], "step_type": "parallel",
            "config": {"branches": [inside.steps], "join": "all", "fail": "never"},
        }, spot)  # fmt: skip
        own = {each["id"] for each in inside.steps}
        failed = cel_of(output_of(holder, "failed"))
        workflow = self._workflow

        def base(step: str) -> str | None:
            return f"\x00{holder}\x00.results[{quoted(step)}]" if step in own else None

        def seen(value: Value) -> Value:
            if isinstance(value, Const):
                return value
            return Expr(f'{cel_of(Expr(moved(value.cel, base)))} | default("")')

        for known in (workflow.outputs, workflow.artifacts):
            for key, each in known.items():
                if isinstance(each, Expr) and steps_in(each.cel) & own:
                    known[key] = seen(each)
        status = f'size({failed}) == 0 ? "Succeeded" : "Failed"'
        if held.guard:
            status = f'!({moved(held.guard, base)}) ? "Skipped" : ({status})'
        done = Done(
            [holder], {key: seen(each) for key, each in held.outputs.items()},
            {key: seen(each) for key, each in held.artifacts.items()},
            None if held.result is None else seen(held.result), status, held.guard, held.is_list,
            failed,
        )  # fmt: skip
        return done, failed

    def hold_all(self, lay: Any, spot: Spot, wanted: str) -> tuple[Done, str]:
        """Lay something out inside a PARALLEL that never fails."""
        inside = replace(spot, steps=[], guards=(), needs=(), containers=spot.containers + 1)
        return self._hold(lay(inside), inside, spot, wanted, "The workflow")

    def _lay_call(self, call: Mapping[str, Any], frame: Frame, spot: Spot, place: str) -> Done:
        template, key, where = self._calls.template_of(call, place, spot.home)
        if key in spot.nested or len(spot.nested) > MAX_NESTED:
            raise Malformed(place, f"The template {key!r} calls itself; pipelines do not recurse.")
        self._calls.check_call(call, place)
        name = scalar(call.get("name") or key, place)
        items = find_items(call, frame, place)
        home = spot.home if "inline" in call else key.partition("/")[0]
        spot = replace(spot, nested=(*spot.nested, key), home=home)
        if items is None:
            guard = self._guard(call, frame, place)
            guards = (*spot.guards, guard) if guard else spot.guards
            done = self._lay_template(template, call, frame, replace(spot, guards=guards),
                                      name, place, where)  # fmt: skip
            done.guard = all_of(guards)
            return done
        return self._lay_loop(template, call, frame, spot, name, place, where, items)

    def _guard(self, call: Mapping[str, Any], frame: Frame, place: str) -> str:
        if call.get("when") in (None, ""):
            return ""
        self._table.mapped(f"{place}.when", "when", "The condition of its steps, in CEL.")
        return condition(scalar(call["when"], f"{place}.when"), frame, f"{place}.when")

    def _lay_loop(
        self,
        template: Mapping[str, Any],
        call: Mapping[str, Any],
        frame: Frame,
        spot: Spot,
        name: str,
        place: str,
        where: str,
        items: Value,
    ) -> Done:
        self._loops += 1
        number, item = self._loops, f"item_{self._loops}"
        loop = self._new_id(f"{spot.prefix}{name}")
        inside = replace(spot, steps=[], guards=(), needs=(), prefix=f"{spot.prefix}{name}-",
                         containers=spot.containers + 1)  # fmt: skip
        self._check_depth(inside, place)
        within = replace(frame, item=Expr(item))
        guard = self._guard(call, within, place)
        found = self._lay_template(template, call, within,
                                   replace(inside, guards=(guard,) if guard else ()),
                                   name, place, where)  # fmt: skip
        config: dict[str, Any] = {"over": written(items), "as": item, "steps": inside.steps}
        step = {"id": loop, "name": name[:200], "step_type": "loop", "config": config}
        self._append(step, spot)
        kind = next(each for each in LOOPS if each in call)
        self._table.mapped(f"{place}.{kind}", kind, "A LOOP over the items.")
        own = {each["id"] for each in inside.steps}
        done = Done([loop], is_list=True, guard=all_of(spot.guards))
        done.outputs = {
            key: _aggregated(_decoded(each), loop, own, number)
            for key, each in found.outputs.items()
        }
        if found.result is not None:
            done.result = _aggregated(_decoded(found.result), loop, own, number)
        if found.outputs:
            done.parameters = _aggregated(pairs_of(found.outputs), loop, own, number)
        return done

    def _lay_template(
        self,
        template: Mapping[str, Any],
        call: Mapping[str, Any],
        frame: Frame,
        spot: Spot,
        name: str,
        place: str,
        where: str,
    ) -> Done:
        self._calls.check_template(template, where)
        inputs, wanted = self._calls.inputs(template, call, frame, place, where)
        artifacts, fetched = self._fetch(wanted, spot, name, place)
        spot = replace(spot, needs=(*spot.needs, *fetched))
        own = Frame(self._workflow if frame.workflow.failed == "" else frame.workflow, inputs,
                    self._calls.paths(template, where), {}, frame.item, "", artifacts)  # fmt: skip
        template = unfolded(template, where, self._table)
        if "steps" in template:
            return self._lay_steps(template, own, replace(spot, prefix=f"{spot.prefix}{name}-"),
                                   where)  # fmt: skip
        if "dag" in template:
            return self._lay_dag(template, own, replace(spot, prefix=f"{spot.prefix}{name}-"),
                                 where)  # fmt: skip
        if "\0sequence" in template:
            return self._lay_unfolded(
                template, name, own, replace(spot, prefix=f"{spot.prefix}{name}-"), where
            )
        step_id = self._new_id(f"{spot.prefix}{name}")
        leaf = self._leaves.make(
            template, Use(step_id, name, where, replace(own, step=step_id), artifacts)
        )  # fmt: skip
        step: dict[str, Any] = {"id": step_id, "name": name[:200], **leaf.fields}
        add_policies(template, step, own, where, self._table)
        self._append(step, spot)
        self._calls.keep_globals(template, leaf.outputs, leaf.artifacts, where)
        if leaf.check:
            wrong = f'{{ "{step_id}": "Its success condition does not hold." }}'
            found = f"({leaf.check}) ? {{ }} : {wrong}"
            fetched.append(self.verdict(found, replace(spot, prefix=f"{step_id}-"), (step_id,)))
        return Done([*fetched, step_id], leaf.outputs, leaf.artifacts, leaf.result, ip=leaf.ip)

    def _fetch(
        self, wanted: Mapping[str, Value | Fetch], spot: Spot, name: str, place: str
    ) -> tuple[dict[str, Value], list[str]]:
        """Put steps that fetch artifacts from elsewhere; return where all of them are."""
        found: dict[str, Value] = {}
        ids: list[str] = []
        for key, each in wanted.items():
            if not isinstance(each, Fetch):
                found[key] = each
                continue
            step_id = self._new_id(f"{spot.prefix}{name}-fetch-{key}")
            fields, value = self._leaves.fetch(each, step_id, place)
            self._append({"id": step_id, "name": f"Fetch {key}"[:200], **fields}, spot)
            found[key] = value
            ids.append(step_id)
        return found, ids

    def _lay_unfolded(
        self, template: Mapping[str, Any], call: str, frame: Frame, spot: Spot, place: str
    ) -> Done:
        """Lay out the containers of one pod as a step each, in their order."""
        done: dict[str, Done] = {}
        for name, (part, after) in template["\0sequence"].items():
            needs = (*spot.needs, *(each for one in after for each in done[one].ids))
            step_id = self._new_id(f"{spot.prefix}{name}")
            leaf = self._leaves.make(
                part, Use(step_id, call if name == "main" else name, place,
                          replace(frame, step=step_id), frame.artifacts)
            )  # fmt: skip
            step: dict[str, Any] = {"id": step_id, "name": name[:200], **leaf.fields}
            add_policies(template, step, frame, place, self._table)
            self._append(step, replace(spot, needs=needs))
            done[name] = Done([step_id], leaf.outputs, leaf.artifacts, leaf.result)
        main = done.get("main", list(done.values())[-1])
        ids = [each for one in done.values() for each in one.ids]
        self._calls.keep_globals(template, main.outputs, main.artifacts, place)
        return Done(ids, main.outputs, main.artifacts, main.result)

    def _lay_steps(
        self, template: Mapping[str, Any], frame: Frame, spot: Spot, place: str
    ) -> Done:  # fmt: skip
        siblings: dict[str, Done] = {}
        needs, everything = spot.needs, []
        for at, raw in enumerate(sequence(template["steps"], f"{place}.steps")):
            group = raw if isinstance(raw, list) else [raw]
            ids: list[str] = []
            known = replace(frame, siblings=dict(siblings))
            for number, each in enumerate(group):
                here = f"{place}.steps[{at}][{number}]"
                call = mapping(each, here)
                name = scalar(call.get("name"), f"{here}.name")
                if name in siblings:
                    raise Malformed(here, f"Two steps are called {name!r}.")
                siblings[name] = self.lay(call, known, replace(spot, needs=needs), here)
                ids += siblings[name].ids
            needs = tuple(dict.fromkeys(ids)) or needs
            everything += ids
        if not everything:
            raise Malformed(f"{place}.steps", "There is no step in it.")
        self._table.mapped(f"{place}.steps", "steps", "Steps, each group after the one before.")
        return self._given(template, replace(frame, siblings=siblings), everything, place)

    def _lay_dag(
        self, template: Mapping[str, Any], frame: Frame, spot: Spot, place: str
    ) -> Done:  # fmt: skip
        dag = mapping(template["dag"], f"{place}.dag")
        for name in dag:
            if name not in ("tasks", "target", "failFast"):
                self._table.refused(f"{place}.dag.{name}", name, "A DAG has no such field.")
        if "failFast" in dag:
            self._table.left_out(f"{place}.dag.failFast", "failFast",
                                 "A failed task fails the run in either case.")  # fmt: skip
        target = resolved(scalar(dag.get("target"), place), frame, f"{place}.dag.target")
        chosen = target.cel if isinstance(target, Expr) else None
        if chosen is not None:
            self._table.mapped(f"{place}.dag.target", "target",
                               "A condition of each task: whether a target needs it.")  # fmt: skip
        wanted = [] if chosen is not None else str(cast(Const, target).value).split()
        calls, depends = self._read_tasks(dag, wanted, f"{place}.dag")
        tolerated = {name for each in depends.values() if each.needs_ends for name in each.tasks}
        siblings: dict[str, Done] = {}
        everything: list[str] = []
        order, left = ordered({name: each.tasks for name, each in depends.items()})
        if left:
            told = ", ".join(sorted(left))
            raise Malformed(f"{place}.dag.tasks", f"These tasks wait for one another: {told}.")
        for name in order:
            call, wants = calls[name], depends[name]
            known = replace(frame, siblings=dict(siblings))
            needs = tuple(dict.fromkeys(
                (*spot.needs, *(each for one in wants.tasks for each in siblings[one].ids))
            ))  # fmt: skip
            guards = spot.guards
            if chosen is not None:
                guards = (*guards, _is_targeted(name, depends, chosen))
            if not wants.is_plain:
                ends = wants.as_cel(lambda one, end: _end_of(siblings[one], end))
                guards = (*guards, ends)
            if name in tolerated:
                call = {**call, "\0tolerated": True}
            here = f"{place}.dag.tasks.{name}"
            siblings[name] = self.lay(call, known, replace(spot, needs=needs, guards=guards), here)
            everything += siblings[name].ids
        self._table.mapped(f"{place}.dag", "dag", "Steps with what they depend on.")
        return self._given(template, replace(frame, siblings=siblings), everything, place)

    def _read_tasks(
        self, dag: Mapping[str, Any], wanted: Sequence[str], place: str
    ) -> tuple[dict[str, Mapping[str, Any]], dict[str, Depends]]:
        calls: dict[str, Mapping[str, Any]] = {}
        depends: dict[str, Depends] = {}
        for at, raw in enumerate(sequence(dag.get("tasks"), f"{place}.tasks")):
            each = mapping(raw, f"{place}.tasks[{at}]")
            name = scalar(each.get("name"), f"{place}.tasks[{at}].name")
            if name in calls:
                raise Malformed(f"{place}.tasks[{at}]", f"Two tasks are called {name!r}.")
            calls[name] = each
            here = f"{place}.tasks.{name}"
            if each.get("depends"):
                depends[name] = read_depends(text(each["depends"], f"{here}.depends"), here)
            else:
                before = tuple(
                    scalar(one, here)
                    for one in sequence(each.get("dependencies"), f"{here}.dependencies")
                )
                depends[name] = Depends(before, before, is_plain=True)
        if not calls:
            raise Malformed(f"{place}.tasks", "There is no task in it.")
        for name, wants in depends.items():
            for one in wants.tasks:
                if one not in calls:
                    raise Malformed(f"{place}.tasks.{name}", f"There is no task {one!r}.")
        if wanted:
            self._table.mapped(f"{place}.target", "target", "Other tasks are left away.")
            left, kept = list(wanted), set()
            while left:
                one = left.pop()
                if one not in calls:
                    raise Malformed(f"{place}.target", f"There is no task {one!r}.")
                if one not in kept:
                    kept.add(one)
                    left += depends[one].tasks
            calls = {name: each for name, each in calls.items() if name in kept}
            depends = {name: each for name, each in depends.items() if name in kept}
        return calls, depends

    def _given(
        self, template: Mapping[str, Any], frame: Frame, ids: list[str], place: str
    ) -> Done:  # fmt: skip
        """Return what a template of calls gives, by what it says of its outputs."""
        done = Done(list(dict.fromkeys(ids)))
        outputs = mapping(template.get("outputs"), f"{place}.outputs")
        where = f"{place}.outputs.parameters"
        for at, raw in enumerate(sequence(outputs.get("parameters"), where)):
            each = mapping(raw, f"{where}[{at}]")
            name = scalar(each.get("name"), f"{where}[{at}].name")
            source = mapping(each.get("valueFrom"), f"{where}[{at}].valueFrom")
            if "parameter" in source:
                value = resolved(scalar(source["parameter"], where), frame, f"{where}[{at}]")
            elif "expression" in source:
                value = Expr(expression(scalar(source["expression"], where), frame,
                                        f"{where}[{at}]"))  # fmt: skip
            elif "value" in each:
                value = resolved(scalar(each["value"], where), frame, f"{where}[{at}]")
            else:
                raise Malformed(f"{where}[{at}]", "Whence this output comes is not known here.")
            if "default" in source and isinstance(value, Expr):
                other = cel_of(Const(scalar(source["default"], where)))
                value = Expr(f"({cel_of(value)} | default({other}))")
            done.outputs[name] = value
        where = f"{place}.outputs.artifacts"
        for at, raw in enumerate(sequence(outputs.get("artifacts"), where)):
            each = mapping(raw, f"{where}[{at}]")
            name = scalar(each.get("name"), f"{where}[{at}].name")
            if "fromExpression" in each:
                done.artifacts[name] = Expr(expression(
                    scalar(each["fromExpression"], where), frame.any, f"{where}[{at}]"
                ))  # fmt: skip
                continue
            done.artifacts[name] = self._calls.artifact(
                text(each.get("from"), f"{where}[{at}].from"), frame, f"{where}[{at}]"
            )
        self._calls.keep_globals(template, done.outputs, done.artifacts, place)
        return done

    def _check_depth(self, spot: Spot, place: str) -> None:
        if spot.containers > MAX_CONTAINERS:
            raise Malformed(place, f"More than {MAX_CONTAINERS} loops lie within one another.")

    def _new_id(self, wanted: str) -> str:
        self._count += 1
        if self._count > MAX_STEPS:
            raise Malformed("the workflow", f"It has more than {MAX_STEPS} steps.")
        return self._ids.new(wanted)

    def _append(self, step: dict[str, Any], spot: Spot) -> None:
        here = id(spot.steps)
        self._lists[step["id"]] = here
        after = [each for each in dict.fromkeys(spot.needs) if self._lists.get(each) == here]
        if after:
            step["depends_on"] = after
        if spot.guards:
            step["condition"] = written(Expr(all_of(spot.guards)))
        spot.steps.append(step)


def _decoded(value: Value) -> Value:
    """Return what a text is in a list: Argo puts in the value of one that is JSON."""
    text = f"string({cel_of(value)})"
    return Expr(f"{text}.matches({_JSON}) ? json.decode({text}) : {text}")


def _aggregated(value: Value, loop: str, own: set[str], number: int) -> Expr:
    """Return what a value is in each iteration, as the JSON text that Argo makes of it.

    An iteration in which the step was skipped gives nothing.
    """
    one = f"result_{number}"
    results = cel_of(output_of(loop, "results"))
    cel = cel_of(value)
    for each in sorted(steps_in(cel) & own):
        results = f"{results}.filter({one}, {one}{member(each)} != null)"
    cel = moved(cel, lambda each: f"{one}{member(each)}" if each in own else None)
    return Expr(f"json.encode({results}.map({one}, {cel}))")


def _end_of(done: Done, end: str) -> str:
    """Return CEL of whether a call ended so."""
    ran = f"({done.guard})" if done.guard else "true"
    failed = f"size({done.failed}) > 0" if done.failed else "false"
    succeeded = f"{ran} && !({failed})"
    return {
        "": f"!({failed})",
        "Succeeded": succeeded,
        "AnySucceeded": succeeded,
        "Daemoned": "false",
        "Failed": failed,
        "Errored": "false",
        "AllFailed": failed,
        "Skipped": f"!{ran}",
        "Omitted": "false",
    }.get(end, "true")


def _is_targeted(name: str, depends: Mapping[str, Depends], target: str) -> str:
    """Return CEL of whether a task is among the targets of a DAG, or something there needs it."""
    needing = {name}
    size = 0
    while size != len(needing):
        size = len(needing)
        needing |= {each for each, wants in depends.items() if needing & set(wants.tasks)}
    names = ", ".join(quoted(each) for each in sorted(needing))
    return f'[{names}].exists(t, t in ({target}).split(" "))'
