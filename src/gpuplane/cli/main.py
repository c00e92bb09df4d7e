"""The `gpuplane` command: a table of commands, loaded one at a time."""

import sys
from collections.abc import Mapping, Sequence

import click

from gpuplane import __version__
from gpuplane.cli.errors import Exit
from gpuplane.cli.lazy import Entry, LazyGroup

_AT = "gpuplane.cli.commands"
START, WORK, LOOK, NOUNS = "Start", "Jobs", "See", "Things"

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
    "clusters": Entry(f"{_AT}.clusters:clusters", "Clusters, freeze and thaw, maintenance.", NOUNS),
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
}  # fmt: skip

HELP = """One control plane for every GPU an organisation owns or rents.

Commands ask the control plane that GPUPLANE_URL and GPUPLANE_TOKEN name, else the one on this
machine. `gpuplane COMMAND --help` explains each."""

EPILOG = (
    "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 refused, 5 no server; `run` and "
    "`exec` end with the exit code of what ran."
)


def build(extra: Mapping[str, Entry] | None = None) -> LazyGroup:
    """Return the whole command.

    Args:
        extra: Commands of other parts, such as the server's own, listed first in their section.
    """
    entries = {**(extra or {}), **COMMANDS}
    order = [START, *dict.fromkeys(entry.section for entry in entries.values())]
    placed = sorted(entries.items(), key=lambda item: order.index(item[1].section))
    group = LazyGroup(
        "gpuplane",
        entries=dict(placed),
        help=HELP,
        epilog=EPILOG,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        no_args_is_help=True,
    )
    return click.version_option(__version__, prog_name="gpuplane")(group)


def main(extra: Mapping[str, Entry] | None = None, arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code.

    Args:
        extra: Commands of other parts by name.
        arguments: What was written after `gpuplane`; the process's own unless told.
    """
    try:
        code = build(extra).main(
            None if arguments is None else list(arguments),
            prog_name="gpuplane",
            standalone_mode=False,
        )
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("gpuplane: interrupted", err=True)
        sys.exit(Exit.INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output is gone, as with `gpuplane ps | head -1`: no error of ours.
        sys.stderr.close()
        sys.exit(Exit.OK)
    sys.exit(code if isinstance(code, int) else Exit.OK)
