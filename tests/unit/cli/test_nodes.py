"""Which cluster's nodes are meant: by its place or by its option, and never two."""

from __future__ import annotations

from click.testing import CliRunner

from gpuplane.cli.commands.nodes import _free, _places, nodes
from gpuplane.cli.errors import Exit


def test_two_clusters_are_not_listed_as_one() -> None:
    result = CliRunner().invoke(nodes, ["ls", "east", "--cluster", "west"])
    assert result.exit_code == Exit.USAGE
    assert "east and west" in result.output


def test_a_node_without_gpus_shows_no_count_of_them() -> None:
    bare = {"gpus": [], "used_workers": 0, "total_workers": 1, "available_workers": 1}
    full = {"gpus": [{}, {}], "used_workers": 1, "total_workers": 2, "available_workers": 1}
    assert [(_places(row), _free(row)) for row in (bare, full)] == [("-", "-"), ("1/2", "1")]
