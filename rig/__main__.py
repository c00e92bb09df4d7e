"""The rig by hand: `python -m rig up`, `status`, `down`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from functools import partial
from pathlib import Path

from rig.binaries import JOBSET, KEDA, BinariesUnavailable, ensure_binaries, find_binaries
from rig.keepers import ensure_kept, keep_rig, stop_keeper
from rig.nodes import MACHINES, MANAGER, parse_nodes
from rig.processes import RigFailed
from rig.rigs import DEFAULT_NODES, DEFAULT_PROCESS_NODES, RigPlan, find_rig, list_dead_parts

DESCRIPTION = "A real Kubernetes without containers: for tests and for trying things out."


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    chosen = _parser().parse_args(arguments)
    try:
        status: int = chosen.run(chosen)
    except (BinariesUnavailable, RigFailed, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rig", description=DESCRIPTION)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: object, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        return command

    up = add("up", _up, "Start etcd, API server, controllers, scheduler, KWOK and Kueue.")
    keep = add("keep", _keep, "The same in the foreground, until Ctrl-C.")
    down = add("down", _down, "Stop the rig and remove its files.")
    status = add("status", _status, "Say whether the rig runs and where its kubeconfigs are.")
    add("binaries", _binaries, "Find the programs, or build them once where go is installed.")
    for command in (up, keep, down, status):
        command.add_argument(
            "--folder", type=Path, default=_default_folder(), help="its files (%(default)s)"
        )
    for command in (up, keep):
        _add_plan(command)
    return parser


def _add_plan(command: argparse.ArgumentParser) -> None:
    kinds = ", ".join(MACHINES)
    command.add_argument(
        "--workers",
        type=int,
        default=0,
        metavar="N",
        help="clusters beside the first (%(default)s)",
    )
    command.add_argument(
        "--nodes",
        default=_written(DEFAULT_NODES),
        metavar="KIND=N,…",
        help=f"nodes that KWOK pretends, of {kinds} (%(default)s)",
    )
    command.add_argument(
        "--process-nodes",
        default=_written(DEFAULT_PROCESS_NODES),
        metavar="KIND=N,…",
        help="nodes whose pods run as processes of this machine (%(default)s)",
    )
    command.add_argument("--no-kueue", action="store_true", help="leave Kueue out")
    command.add_argument("--jobset", action="store_true", help="with a JobSet controller")
    command.add_argument(
        "--keda", action="store_true", help="with the definitions of KEDA's kinds, no operator"
    )
    command.add_argument(
        "--machines-of",
        metavar="NAME",
        default=MANAGER,
        help="tells the GPUs of this rig from those of another beside it (manager)",
    )
    command.add_argument("--until-gone", type=int, metavar="PID", help="end with this process")


def _written(nodes: tuple[tuple[str, int], ...]) -> str:
    return ",".join(f"{kind}={count}" for kind, count in nodes)


def _default_folder() -> Path:
    return Path(tempfile.gettempdir(), f"gpuplane-rig-of-{os.getuid()}")


def _plan(chosen: argparse.Namespace) -> RigPlan:
    return RigPlan(
        workers=chosen.workers,
        nodes=parse_nodes(chosen.nodes),
        process_nodes=parse_nodes(chosen.process_nodes),
        kueue=not chosen.no_kueue,
        jobset=chosen.jobset,
        machines_of=chosen.machines_of,
        keda=chosen.keda,
    )


def _up(chosen: argparse.Namespace) -> int:
    plan = _plan(chosen)  # a mistake is said here, not in the log of the keeper
    if find_rig(chosen.folder) is None:
        ensure_binaries(lambda text: print(text, flush=True), plan.more)
        arguments = ["--workers", str(chosen.workers), "--nodes", chosen.nodes]
        arguments += ["--process-nodes", chosen.process_nodes]
        arguments += ["--no-kueue"] if chosen.no_kueue else []
        arguments += ["--jobset"] if chosen.jobset else []
        arguments += ["--machines-of", chosen.machines_of]
        arguments += ["--keda"] if chosen.keda else []
        arguments += ["--until-gone", str(chosen.until_gone)] if chosen.until_gone else []
        ensure_kept(chosen.folder, arguments)
    return _status(chosen)


def _keep(chosen: argparse.Namespace) -> int:
    keep_rig(chosen.folder, _plan(chosen), chosen.until_gone, lambda text: print(text, flush=True))
    return 0


def _down(chosen: argparse.Namespace) -> int:
    print("stopped" if stop_keeper(chosen.folder) else "no rig runs here")
    return 0


def _status(chosen: argparse.Namespace) -> int:
    state = find_rig(chosen.folder)
    if state is None:
        print(f"no rig runs in {chosen.folder}")
        return 1
    for name, path in state["kubeconfigs"].items():
        print(f"{name}: {path}")
    for part in list_dead_parts(state):
        cluster, _, program = part.partition("/")
        print(f"{part} ended; its log: {chosen.folder / cluster / 'logs' / program}.log")
    kubectl = find_binaries()["kubectl"]
    print(f"try: KUBECONFIG={state['kubeconfigs']['manager']} {kubectl} get nodes")
    return 0


def _binaries(_: argparse.Namespace) -> int:
    announce = partial(print, file=sys.stderr, flush=True)
    for name, path in ensure_binaries(announce, (JOBSET, KEDA)).programs.items():
        print(f"{name}: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
