"""`gpuplane simulate`: what a policy would do with a trace, worked out here without a server.

Owns the group alone; each simulation is a module beside this one, imported when it is called.
"""

import click

from gpuplane.cli.lazy import LazyGroup
from gpuplane.cli.table import Entry

_AT = "gpuplane.cli.commands.simulate"

SIMULATIONS: dict[str, Entry] = {
    "decide": Entry(f"{_AT}.decide:decide", "Make a recorded decision again."),
    "placement": Entry(f"{_AT}.placement:placement", "Place pods on nodes as they arrive."),
    "queueing": Entry(f"{_AT}.queueing:queueing", "Serve one pool's queue by an order."),
}


class SimulationGroup(LazyGroup):
    """A lazy group below the command itself: its help lists its own table."""

    def get_help(self, ctx: click.Context) -> str:
        """Return click's help of this group."""
        return click.Group.get_help(self, ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table's lines, so that a help text imports no simulation."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self.entries.items()])


simulate = SimulationGroup(
    name="simulate",
    entries=SIMULATIONS,
    help="Try a policy on a trace of jobs, offline: no server is asked and nothing is changed.",
)
