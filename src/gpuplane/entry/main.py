"""The `gpuplane` command: the client's commands, and those that need the server's parts."""

from gpuplane.cli.main import main as command_line
from gpuplane.cli.table import START, Entry

SERVER_COMMANDS = {
    "up": Entry(
        "gpuplane.entry.commands:up",
        "Start the control plane in this terminal.",
        START,
    ),
    "db": Entry(
        "gpuplane.entry.dbcommands:db",
        "Upgrade, back up, restore and check the database.",
        START,
    ),
    "extender": Entry(
        "gpuplane.entry.extending:extender",
        "Advise kube-scheduler about GPUs, inside a cluster.",
        START,
    ),
    "operator": Entry(
        "gpuplane.entry.operating:operator",
        "Serve GPUWorkload and MIGLayout inside a cluster.",
        START,
    ),
}
"""Named by their place, so that a command of the client imports nothing of the server."""


def main() -> None:
    """Run the command line."""
    command_line(SERVER_COMMANDS)
