"""The table of commands and the help made from it; imports nothing, so that `--help` is instant.

Importing click takes 60 ms, which is most of what a help text may take.
"""

from collections.abc import Mapping
from typing import NamedTuple

HELP_WIDTH = 100


class Entry(NamedTuple):
    """One command of a table.

    Args:
        target: Where it lies, as `package.module:attribute`.
        help: One line.
        section: The heading under which the help lists it.
    """

    target: str
    help: str
    section: str = "Commands"


_AT = "gpuplane.cli.commands"
START, WORK, LOOK, NOUNS, OFFLINE = "Start", "Jobs", "See", "Things", "Offline"

COMMANDS: dict[str, Entry] = {
    "demo": Entry(f"{_AT}.demo:demo", "Fill the simulated cluster with a lively backlog.", START),
    "run": Entry(f"{_AT}.run:run", "Run a command as a job, stream its log, end as it ends.", WORK),
    "apply": Entry(f"{_AT}.apply:apply", "Make things so as manifests say; asks first.", WORK),
    "ps": Entry(f"{_AT}.jobs:ps", "List unfinished jobs, or all with -a.", WORK),
    "logs": Entry(f"{_AT}.logs:logs", "Show or follow what a job printed.", WORK),
    "exec": Entry(f"{_AT}.actions:exec_", "Run a command beside a running job.", WORK),
    "cancel": Entry(f"{_AT}.actions:cancel", "Stop jobs for good.", WORK),
    "retry": Entry(f"{_AT}.actions:retry", "Try failed or cancelled jobs again.", WORK),
    "suspend": Entry(f"{_AT}.actions:suspend", "Hold jobs back until they are resumed.", WORK),
    "resume": Entry(f"{_AT}.actions:resume", "Let suspended jobs stand in line again.", WORK),
    "why": Entry(f"{_AT}.why:why", "Say why a job stands where it stands.", LOOK),
    "queue": Entry(f"{_AT}.queue:queue", "Show who waits, for what, and until when.", LOOK),
    "timeline": Entry(f"{_AT}.timeline:timeline", "Draw what each GPU did and will do.", LOOK),
    "events": Entry(f"{_AT}.events:events", "List or follow what happened.", LOOK),
    "usage": Entry(f"{_AT}.usage:usage", "Show what was used and what it costs.", LOOK),
    "jobs": Entry(f"{_AT}.jobs:jobs", "Jobs in detail: show, attempts, artifacts …", NOUNS),
    "pipelines": Entry(f"{_AT}.pipelines:pipelines", "Pipelines and their runs.", NOUNS),
    "clusters": Entry(f"{_AT}.clusters:clusters", "Clusters: register, look, freeze, rm.", NOUNS),
    "nodes": Entry(f"{_AT}.nodes:nodes", "Nodes: cordon, drain, uncordon.", NOUNS),
    "fleet": Entry(f"{_AT}.fleet:fleet", "GPUs by model: total, free, reserved, in use.", NOUNS),
    "quotas": Entry(f"{_AT}.queues:quotas", "Quotas and what is used of them.", NOUNS),
    "queues": Entry(f"{_AT}.queues:queues", "Cluster queues and local queues.", NOUNS),
    "cohorts": Entry(f"{_AT}.queues:cohorts", "Cohorts: who may borrow from whom.", NOUNS),
    "tenants": Entry(f"{_AT}.identity:tenants", "Tenants.", NOUNS),
    "projects": Entry(f"{_AT}.identity:projects", "Projects and the clusters they may use.", NOUNS),
    "users": Entry(f"{_AT}.identity:users", "Users and their roles.", NOUNS),
    "tokens": Entry(f"{_AT}.identity:tokens", "Tokens: create, list, revoke.", NOUNS),
    "secrets": Entry(f"{_AT}.secrets:secrets", "Secrets, by name; values go in only.", NOUNS),
    "prices": Entry(f"{_AT}.prices:prices", "The price book.", NOUNS),
    "reservations": Entry(f"{_AT}.reservations:reservations", "GPUs set aside.", NOUNS),
    "webhooks": Entry(f"{_AT}.webhooks:webhooks", "Outgoing webhooks.", NOUNS),
    "simulate": Entry(f"{_AT}.simulate:simulate", "Try a policy on a trace of jobs.", OFFLINE),
    "topology": Entry(f"{_AT}.topology:topology", "Which GPUs of a node belong together.", OFFLINE),
    "mig": Entry(f"{_AT}.mig:mig", "How a GPU model can be cut into MIG instances.", OFFLINE),
}  # fmt: skip

USAGE = "Usage: gpuplane [OPTIONS] COMMAND [ARGS]..."

ABOUT = """\
  One control plane for every GPU an organisation owns or rents.

  Commands ask the control plane that GPUPLANE_URL and GPUPLANE_TOKEN name, else the one on this
  machine. `gpuplane COMMAND --help` explains each."""

OPTIONS = """\
Options:
  --version   Show the version and exit.
  -h, --help  Show this text and exit."""

EXITS = """\
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 refused, 5 no server; `run` and `exec`
end with the exit code of what ran."""


def commands_with(extra: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return every command by section, those of other parts first in theirs.

    Args:
        extra: Commands of other parts, such as the server's own.
    """
    entries = {**extra, **COMMANDS}
    order = list(dict.fromkeys([START, *(entry.section for entry in entries.values())]))
    return dict(sorted(entries.items(), key=lambda item: order.index(item[1].section)))


def help_text(entries: Mapping[str, Entry]) -> str:
    """Return the help of the whole command."""
    width = max(len(name) for name in entries)
    blocks = [USAGE, ABOUT, OPTIONS]
    for section in dict.fromkeys(entry.section for entry in entries.values()):
        rows = [
            f"  {name:<{width}}  {entry.help}"
            for name, entry in entries.items()
            if entry.section == section
        ]
        blocks.append("\n".join([f"{section}:", *rows]))
    return "\n\n".join([*blocks, EXITS])
