"""Turns a compiled Kubeflow pipeline into a pipeline document."""

from collections.abc import Sequence
from typing import Any

from gpuplane.core.imports.kfp.executors import Executors
from gpuplane.core.imports.kfp.graphs import Graphs, Scope
from gpuplane.core.imports.kfp.passing import root_parameters
from gpuplane.core.imports.kfp.spec import read_spec
from gpuplane.core.imports.naming import name_of, word_of
from gpuplane.core.imports.results import Containers, Table
from gpuplane.core.imports.values import Expr, Value, member, plain, quoted, written


def translate(
    documents: Sequence[Any], containers: Containers, table: Table
) -> dict[str, Any]:  # fmt: skip
    """Return the pipeline document of a compiled pipeline, with its platform if there is one.

    Raises:
        Malformed: If it is no compiled pipeline.
    """
    spec = read_spec(documents, table)
    executors = Executors(spec, containers, table)
    steps: list[dict[str, Any]] = []
    parameters: dict[str, Value] = {}
    artifacts: dict[str, Value] = {}
    for name, each in spec.root.inputs.items():
        given = f"params{member(word_of(name))}"
        if not each.kind.startswith("artifact"):
            parameters[name] = Expr(given)
            continue
        where = f"root.inputDefinitions.artifacts.{name}"
        if each.is_optional:
            table.left_out(where, "input artifact", "It is optional; runs start without it.")
        elif each.kind == "artifacts":
            table.refused(where, "input artifact", "A run is not started with several artifacts.")
        else:
            artifacts[name] = Expr(
                f'{{ "name": {quoted(name)}, "type": "system.Artifact", "uri": {given}, '
                '"metadata": {} }'
            )
            table.mapped(where, "input artifact", "A parameter, the artifact's URI.")
    root = Scope(spec.root, "", steps, parameters, artifacts)
    found = Graphs(spec, executors, table).lay(root)
    document: dict[str, Any] = {}
    if spec.description:
        document["description"] = plain(spec.description[:60_000])
    wanted = root_parameters(spec.root)
    if wanted:
        document["parameters"] = {word_of(name): each for name, each in wanted.items()}
        for name in wanted:
            table.mapped(f"root.inputDefinitions.parameters.{name}", "parameter", "A parameter.")
    document["steps"] = steps
    outputs = {**found.outputs, **found.artifacts}
    if outputs:
        document["outputs"] = {word_of(name): written(each) for name, each in outputs.items()}
        for name in outputs:
            table.mapped(f"root.dag.outputs.{name}", "output", "An output of the pipeline.")
    if spec.pipeline_root:
        table.left_out("defaultPipelineRoot", "pipeline root",
                       "Artifacts lie in outputs of steps or in a volume.")  # fmt: skip
    if spec.has_workspace:
        table.mapped("platforms.kubernetes.pipelineConfig.workspace", "workspace",
                     "A volume that every job of the pipeline mounts.")  # fmt: skip
    return {
        "apiVersion": "gpuplane.io/v1",
        "kind": "Pipeline",
        "metadata": {"name": name_of(spec.name)},
        "spec": document,
    }
