"""Which cluster's nodes are meant: by its place or by its option, and never two."""

from __future__ import annotations

from click.testing import CliRunner

from gpuplane.cli.commands.nodes import nodes
from gpuplane.cli.errors import Exit


def test_two_clusters_are_not_listed_as_one() -> None:
    result = CliRunner().invoke(nodes, ["ls", "east", "--cluster", "west"])
    assert result.exit_code == Exit.USAGE
    assert "east and west" in result.output
