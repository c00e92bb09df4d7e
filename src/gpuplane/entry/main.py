"""The `gpuplane` command: the client's commands, and those that need the server's parts."""

import sys


def main() -> None:
    """Run the command line."""
    if len(sys.argv) > 1 and sys.argv[1] == "up":
        from gpuplane.entry.commands import up

        sys.exit(up(sys.argv[2:]))
    from gpuplane.cli.main import main as client

    client()
