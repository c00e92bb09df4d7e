"""The fleet format: what it can say, and what each mistake is answered with."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gpuplane.backends.simulated import FleetError, load_fleet, parse_fleet
from gpuplane.backends.simulated.fleet import Delay, DelayShape, Failure, FailureKind
from gpuplane.kit.errors import FieldError

FULL = """
apiVersion: gpuplane.io/v1
kind: Fleet
metadata: {name: full}
spec:
  description: One of everything.
  racks: [{name: r1, block: b1}, {name: r2}]
  nodeGroups:
    - name: a
      nodeName: node-{index:03}
      startIndex: 7
      count: 4
      gpus: {model: NVIDIA-A100-SXM4-80GB, count: 2}
      topology: pcie-2
      cpu: 96500m
      memory: 512Gi
      ephemeralStorage: 2T
      labels: {zone: east, example.com/tier: gold}
      taints: [{key: dedicated, value: ml, effect: NoSchedule}]
      racks: [r1, r2]
      rdmaFabric: ib-1
      mig:
        - {gpus: [1], layout: [1g.10gb, 3g.40gb@4]}
    - {name: cpu, count: 1, cpu: 4, memory: 8Gi, ephemeralStorage: 10Gi}
  prices:
    currency: EUR
    gpuHour: {A100-80GB: 1.5}
    cpuCoreHour: "0.000001"
    memoryGibHour: 0
  startDelay: {distribution: lognormal, median: 2s, p95: 1m}
  stopDelay: {distribution: uniform, min: 500ms, max: 1500ms}
  failures:
    - {kind: NodeDown, node: node-007, at: 1h30m, for: 10m, every: 2d}
    - {kind: GpuFailed, node: node-010, gpu: 1, at: 90}
  clock: {speed: 60}
"""


def changed(path: str, value: object) -> str:
    """Return the full fleet with the value at a dotted path replaced; None removes it."""
    document = yaml.safe_load(FULL)
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    place = document
    for part in parents:
        place = place[part]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return yaml.safe_dump(document)


def mistakes(text: str) -> tuple[FieldError, ...]:
    with pytest.raises(FleetError) as refused:
        parse_fleet(text, "fleet.yaml")
    assert all(str(refused.value).count(f"fleet.yaml: {e.field}: ") for e in refused.value.errors)
    return refused.value.errors


def test_a_full_fleet_says_everything() -> None:
    fleet = parse_fleet(FULL, "full.yaml")
    assert [node.name for node in fleet.nodes] == [
        "node-007",
        "node-008",
        "node-009",
        "node-010",
        "cpu-01",
    ]
    node = fleet.nodes[2]
    assert (node.cpu_milli, node.memory_mib, node.ephemeral_mib) == (96_500, 524_288, 1_907_348)
    assert [(each.rack, each.block) for each in fleet.nodes] == [
        ("r1", "b1"),
        ("r1", "b1"),
        ("r2", ""),
        ("r2", ""),
        ("", ""),
    ]
    assert node.taints == (("dedicated", "ml", "NoSchedule"),)
    assert node.labels["example.com/tier"] == "gold"
    assert node.labels["gpuplane.io/node-group"] == "a"
    assert (node.topology, node.rdma_fabric) == ("pcie-2", "ib-1")
    assert [gpu.numa for gpu in node.gpus] == [0, 0]
    assert [gpu.mig for gpu in node.gpus] == [(), (("1g.10gb", 0), ("3g.40gb", 4))]
    assert fleet.nodes[4].gpus == ()
    assert fleet.prices.gpu_hour_micro == {"nvidia-a100-80gb": 1_500_000}
    assert (fleet.prices.currency, fleet.prices.cpu_core_hour_micro) == ("EUR", 1)
    assert fleet.start_delay == Delay(DelayShape.LOGNORMAL, 2000, 60_000)
    assert fleet.stop_delay == Delay(DelayShape.UNIFORM, 500, 1500)
    assert fleet.failures == (
        Failure(FailureKind.NODE_DOWN, "node-007", 5_400_000, None, 600_000, 172_800_000),
        Failure(FailureKind.GPU_FAILED, "node-010", 90_000, 1),
    )
    assert fleet.speed == 60


def test_two_clusters_of_one_file_have_gpus_of_their_own() -> None:
    own, other = parse_fleet(FULL, "f.yaml"), parse_fleet(FULL, "f.yaml", "other")
    assert (own.name, other.name) == ("full", "other")
    ids = [gpu.gpu_id for fleet in (own, other) for node in fleet.nodes for gpu in node.gpus]
    assert len(set(ids)) == len(ids)


def test_links_can_be_pasted_from_nvidia_smi() -> None:
    matrix = (
        "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\n"
        "GPU0\t X \tNV4\t0-15\t0\n"
        "GPU1\tNV4\t X \t16-31\t1\n"
    )
    fleet = parse_fleet(changed("spec.nodeGroups.0.topology", matrix), "fleet.yaml")
    assert fleet.nodes[0].topology == matrix
    assert [gpu.numa for gpu in fleet.nodes[0].gpus] == [0, 1]


def test_instances_without_a_place_find_one_that_holds_them_all() -> None:
    layout = ["1g.10gb", "2g.20gb", "1g.10gb", "3g.40gb"]
    fleet = parse_fleet(changed("spec.nodeGroups.0.mig.0.layout", layout), "fleet.yaml")
    assert {start for _, start in fleet.nodes[0].gpus[1].mig} == {0, 2, 3, 4}


GROUP = "spec.nodeGroups.0"
AT = "spec.nodeGroups[0]"


@pytest.mark.parametrize(
    ("path", "value", "field", "reason", "fix"),
    [
        ("apiVersion", "v2", "apiVersion", "'v2' is not read here", "gpuplane.io/v1"),
        ("kind", "Cluster", "kind", "'Cluster' is not read", "write Fleet"),
        ("metadata.name", None, "metadata.name", "missing", "needs it"),
        ("metadata.name", "", "metadata.name", "it is empty", "write a text"),
        ("metadata.name", "Bad Name", "metadata.name", "not a name", "lower case"),
        ("metadata.nmae", "x", "metadata.nmae", "not known", "did you mean name?"),
        ("spec.nodes", [], "spec.nodes", "not known", "did you mean nodeGroups?"),
        ("spec.xyz", [], "spec.xyz", "not known", "known here: clock, description"),
        ("spec.nodeGroups", {}, "spec.nodeGroups", "a mapping stands here", "write a list"),
        ("spec.nodeGroups", [], "spec.nodeGroups", "no node", "at least one"),
        (f"{GROUP}", "text", AT, "the text 'text' stands here", "write a mapping"),
        (f"{GROUP}.name", 7, f"{AT}.name", "the number 7", "write a text"),
        (f"{GROUP}.count", 0, f"{AT}.count", "0 stands here", "from 1 to 10000"),
        (f"{GROUP}.count", "4", f"{AT}.count", "the text '4'", "a whole number"),
        (f"{GROUP}.count", True, f"{AT}.count", "True stands", "a whole number"),
        (f"{GROUP}.gpus.model", "H1000", f"{AT}.gpus.model", "not known", "nearest: nvidia-h100"),
        (f"{GROUP}.gpus.count", 17, f"{AT}.gpus.count", "17 stands here", "from 1 to 16"),
        (f"{GROUP}.gpus.number", 2, f"{AT}.gpus.number", "not known", "known here: count, model"),
        (f"{GROUP}.topology", "ring-2", f"{AT}.topology", "unknown topology", "nvidia-smi topo"),
        (f"{GROUP}.topology", "nvswitch-8", f"{AT}.topology", "8 GPUs, not 2", "nvidia-smi topo"),
        (f"{GROUP}.cpu", None, f"{AT}.cpu", "missing", "needs it"),
        (f"{GROUP}.cpu", -1, f"{AT}.cpu", "out of range", "number of cores"),
        (f"{GROUP}.cpu", "many", f"{AT}.cpu", "'many' is not a number", "number of cores"),
        (f"{GROUP}.memory", "512GB", f"{AT}.memory", "'512GB' is not an amount", "512Gi"),
        (f"{GROUP}.ephemeralStorage", True, f"{AT}.ephemeralStorage", "not an amount", "512Gi"),
        (f"{GROUP}.labels.zone", 3, f"{AT}.labels.zone", "the number 3", "write a text"),
        (f"{GROUP}.labels.zone", "a b", f"{AT}.labels.zone", "not a Kubernetes label", "letters"),
        (f"{GROUP}.taints.0.effect", "Never", f"{AT}.taints[0].effect", "no effect", "NoSchedule"),
        (f"{GROUP}.racks.1", "r9", f"{AT}.racks[1]", "no rack 'r9'", "known: r1, r2"),
        ("spec.racks.1.name", "r1", "spec.racks[1].name", "described twice", "its own name"),
        (f"{GROUP}.nodeName", "same", f"{AT}.nodeName", "no name for each", "{index}"),
        (f"{GROUP}.nodeName", "N_{index}", f"{AT}.nodeName", "are no names", "lower case"),
        ("spec.nodeGroups.1.name", "a", "spec.nodeGroups[1].name", "exists already", "another"),
        (f"{GROUP}.mig.0.gpus", [2], f"{AT}.mig[0].gpus[0]", "2 stands here", "from 0 to 1"),
        (f"{GROUP}.mig.0.gpus", [], f"{AT}.mig[0].gpus", "no GPU is named", "[0, 1]"),
        (
            f"{GROUP}.mig.0.layout",
            ["9g.90gb"],
            f"{AT}.mig[0].layout[0]",
            "no MIG profile '9g.90gb'",
            "nearest: ",
        ),
        (
            f"{GROUP}.mig.0.layout",
            ["4g.40gb", "4g.40gb"],
            f"{AT}.mig[0].layout",
            "do not fit together",
            "can exist together",
        ),
        (
            f"{GROUP}.mig.0.layout",
            ["3g.40gb@2"],
            f"{AT}.mig[0].layout",
            "starts at 0, 4, not at 2",
            "can exist together",
        ),
        (
            f"{GROUP}.mig.0.layout",
            ["3g.40gb@x"],
            f"{AT}.mig[0].layout[0]",
            "no placement",
            "3g.40gb@4",
        ),
        (f"{GROUP}.gpus.model", "T4", f"{AT}.mig", "has no MIG", "another model"),
        ("spec.prices.currency", "euro", "spec.prices.currency", "no currency", "EUR"),
        ("spec.prices.currency", "USS", "spec.prices.currency", "no currency", "nearest: USD"),
        ("spec.prices.gpuHour", {"X9": 1}, "spec.prices.gpuHour.X9", "not known", "nearest"),
        ("spec.prices.gpuHour", {"T4": 1}, "spec.prices.gpuHour.T4", "no node", "nvidia-a100-80gb"),
        (
            "spec.prices.gpuHour",
            {"A100-80GB": 1, "nvidia-a100-80gb": 2},
            "spec.prices.gpuHour.nvidia-a100-80gb",
            "has a price already",
            "keep one",
        ),
        ("spec.prices.cpuCoreHour", -1, "spec.prices.cpuCoreHour", "out of range", "from 0"),
        ("spec.prices.cpuCoreHour", ".inf", "spec.prices.cpuCoreHour", "not a", "six decimals"),
        ("spec.prices.cpuCoreHour", "1e-7", "spec.prices.cpuCoreHour", "finer", "six decimals"),
        ("spec.startDelay.median", "soon", "spec.startDelay.median", "not a duration", "90s"),
        ("spec.startDelay.p95", "1s", "spec.startDelay.p95", "less than median", "at least median"),
        (
            "spec.startDelay.distribution",
            "odd",
            "spec.startDelay.distribution",
            "no dist",
            "uniform",
        ),
        ("spec.stopDelay.max", None, "spec.stopDelay.max", "missing", "needs it"),
        ("spec.failures.0.node", "nobody", "spec.failures[0].node", "no node 'nobody'", "name a"),
        ("spec.failures.0.kind", "Fire", "spec.failures[0].kind", "no failure", "NodeDown"),
        ("spec.failures.0.gpu", 0, "spec.failures[0].gpu", "as a whole", "GpuFailed"),
        ("spec.failures.0.every", "10m", "spec.failures[0].every", "fail again", "longer"),
        ("spec.failures.0.for", "0s", "spec.failures[0].for", "recover at once", "a time"),
        ("spec.failures.0.at", None, "spec.failures[0].at", "missing", "needs it"),
        ("spec.failures.1.gpu", 2, "spec.failures[1].gpu", "2 stands here", "from 0 to 1"),
        ("spec.clock.speed", 0, "spec.clock.speed", "out of range", "greater than 0"),
        ("spec.clock.speed", "fast", "spec.clock.speed", "not a number", "greater than 0"),
    ],
)
def test_a_mistake_is_answered_with_its_place_its_reason_and_its_fix(
    path: str, value: object, field: str, reason: str, fix: str
) -> None:
    found = [each for each in mistakes(changed(path, value)) if each.field == field]
    assert found, [str(each) for each in mistakes(changed(path, value))]
    assert reason in found[0].reason
    assert fix in found[0].fix


def test_two_groups_cannot_make_the_same_node() -> None:
    text = FULL.replace("name: cpu, count: 1", "name: cpu, nodeName: 'node-{index}', count: 1")
    text = text.replace("name: cpu, nodeName", "name: cpu, startIndex: 7, nodeName")
    text = text.replace("node-{index:03}", "node-{index}")
    (mistake,) = [e for e in mistakes(text) if e.field == "spec.nodeGroups[1].nodeName"]
    assert "the node 'node-7' exists already" in mistake.reason
    assert "startIndex" in mistake.fix


def test_a_gpu_has_one_layout() -> None:
    layouts = [{"gpus": [0, 1], "layout": ["7g.80gb"]}, {"gpus": [1], "layout": ["1g.10gb"]}]
    (mistake,) = mistakes(changed("spec.nodeGroups.0.mig", layouts))
    assert (mistake.field, mistake.reason) == (f"{AT}.mig[1].gpus", "GPU 1 has a layout already")


def test_a_fleet_cannot_pass_the_largest_number_of_nodes() -> None:
    (mistake,) = mistakes(changed("spec.nodeGroups.0.count", 10_000))[-1:]
    assert (mistake.field, mistake.reason) == (
        "spec.nodeGroups[1].count",
        "the fleet would pass 10000 nodes",
    )


def test_all_mistakes_are_told_at_once() -> None:
    text = changed("spec.nodeGroups.0.cpu", "x").replace("currency: EUR", "currency: euro")
    assert {each.field for each in mistakes(text)} == {f"{AT}.cpu", "spec.prices.currency"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it holds 0 documents"),
        ("kind: Fleet\n---\nkind: Fleet\n", "it holds 2 documents"),
        ("kind: [Fleet", "it is not YAML"),
        ("kind: Fleet\nkind: Fleet\n", "the key 'kind' stands twice, first in line 1"),
        ("1: Fleet\n", "the key 1 is not a text"),
        ("a: &x 1\nb: *x\n", "aliases"),
        ("a: {<<: {b: 1}}\n", "merge keys"),
        ("a: !!python/object/apply:os.system [ls]\n", "it is not YAML"),
        ("[" * 30 + "]" * 30, "nested deeper"),
        ("# " + "x" * 5_000_000, "characters"),
        ("kind: \x00\n", "it is not YAML"),
    ],
)
def test_a_text_that_is_no_document_is_refused_as_a_whole(text: str, reason: str) -> None:
    (mistake,) = mistakes(text)
    assert mistake.field == "(document)"
    assert reason in mistake.reason
    assert mistake.fix


@pytest.mark.parametrize("text", ["[]", "just words", "7"])
def test_a_document_that_is_no_mapping_is_refused(text: str) -> None:
    assert "write a mapping" in mistakes(text)[0].fix


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match=r"absent\.yaml"):
        load_fleet(tmp_path / "absent.yaml")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FleetError, match="UTF-8"):
        load_fleet(binary)
