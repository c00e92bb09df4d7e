"""Which row a word means: what is changed is named whole, what is looked at by a part too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import pytest
from click.testing import CliRunner

from gpuplane.cli.client import Client
from gpuplane.cli.commands import identity, jobs, pipeline_steering, pipelines, prices
from gpuplane.cli.errors import CliError, Exit
from gpuplane.cli.lookups import find_exactly, pick, pick_exactly

ZETA, OTHER = "01a1fe21-d573-7716-92cc-818365d2f316", "01a1fe21-d574-7716-92cc-aaaa65d2f317"
ROWS = [{"id": ZETA, "name": "zeta"}, {"id": OTHER, "name": "core"}]
QUEUES: list[dict[str, Any]] = [{"name": "q-one"}, {"name": "q-two", "cluster": {"exists": True}}]


class Listed(Client):
    """A client whose server has one list, and remembers what was deleted."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.listed = rows
        self.deleted: list[str] = []

    def items(self, path: str, limit: int | None = None, **query: Any) -> Iterator[dict[str, Any]]:
        return iter(self.listed)

    def delete(self, path: str, **query: Any) -> Any:
        self.deleted.append(path)


def refusal(rows: list[dict[str, Any]], key: str) -> CliError:
    with pytest.raises(CliError) as caught:
        pick_exactly(rows, key, "tenant")
    return caught.value


@pytest.mark.parametrize("key", ["zeta", ZETA, ZETA[-8:], ZETA[:15], ZETA[-8:].upper()])
def test_what_is_changed_is_found_by_its_whole_name_or_enough_of_its_id(key: str) -> None:
    assert pick_exactly(ROWS, key, "tenant") == ROWS[0]


@pytest.mark.parametrize("key", ["ze", "z", "zetas", "eta", ZETA[-7:], ""])
def test_what_is_changed_is_not_found_by_a_part_of_its_name(key: str) -> None:
    error = refusal(ROWS, key)
    assert error.code is Exit.NOT_FOUND
    assert error.message == f"There is no tenant {key!r}."


def test_a_name_of_32_hexadecimal_digits_is_looked_up_as_a_name() -> None:
    name = "-".join("a" * 32)
    row = {"id": ZETA, "name": name}
    assert find_exactly(Listed([row]), "/tenants", name, "tenant") == row


@pytest.mark.parametrize("key", ["ze", "zetta"])
def test_the_refusal_offers_the_nearest_names_alone(key: str) -> None:
    assert refusal(ROWS, key).fix == "Nearest names: zeta."


def test_without_a_near_name_those_that_there_are_are_told() -> None:
    assert refusal(ROWS, "museum").fix == "Known: zeta, core."
    assert refusal([], "museum").fix == ""


def test_what_several_ids_begin_with_is_not_chosen_between() -> None:
    error = refusal(ROWS, ZETA[:8])
    assert error.code is Exit.USAGE
    assert ZETA in error.fix
    assert OTHER in error.fix


def test_one_name_on_two_clusters_is_refused_with_both() -> None:
    rows = [{"id": ZETA, "name": "n1", "cluster": "lab"}, {"id": OTHER, "name": "n1",
            "cluster": "east"}]  # fmt: skip
    error = refusal(rows, "n1")
    assert "on lab" in error.fix
    assert "on east" in error.fix


def test_rows_without_ids_are_told_apart_by_their_names() -> None:
    with pytest.raises(CliError) as caught:
        pick(QUEUES, "q", "quota")
    assert caught.value.message == "2 quotas are meant by 'q'."
    assert caught.value.fix == "Name one by its whole name:\n  q-one\n  q-two"


def test_what_is_looked_at_may_be_named_by_a_unique_part_but_not_by_nothing() -> None:
    assert pick(ROWS, "ze", "tenant") == pick(ROWS, ZETA[-4:], "tenant") == ROWS[0]
    with pytest.raises(CliError, match="There is no tenant ''"):
        pick(ROWS[:1], "", "tenant")


def test_one_name_in_two_tenants_is_not_taken_for_the_first() -> None:
    twins = [{"id": ZETA, "name": "default"}, {"id": OTHER, "name": "default"}]
    with pytest.raises(CliError, match="2 projects are meant"):
        find_exactly(Listed(twins), "/projects", "default", "project")


@pytest.mark.parametrize(
    ("group", "path"),
    [(identity.tenants, "/tenants"), (identity.projects, "/projects"), (identity.users, "/users")],
)
def test_only_a_whole_name_deletes_and_the_name_found_is_told(
    monkeypatch: pytest.MonkeyPatch, group: click.Group, path: str
) -> None:
    client = Listed(ROWS)
    monkeypatch.setattr(identity, "Client", lambda: client)
    refused = CliRunner().invoke(group, ["rm", "ze", "--yes"])
    assert (refused.exit_code, client.deleted) == (Exit.NOT_FOUND, [])
    unasked = CliRunner().invoke(group, ["rm", ZETA[-8:]])
    assert (unasked.exit_code, client.deleted) == (Exit.USAGE, [])
    done = CliRunner().invoke(group, ["rm", ZETA[-8:], "--yes"])
    assert (done.output, client.deleted) == ("zeta deleted\n", [f"{path}/{ZETA}"])


def test_a_run_is_not_cancelled_by_the_last_letter_of_its_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pipeline_steering, "Client", lambda: Listed(ROWS))
    refused = CliRunner().invoke(pipelines.pipelines, ["cancel", "6"])
    assert refused.exit_code == Exit.USAGE
    assert "Write 8 or more characters" in refused.output


@pytest.mark.parametrize(
    ("group", "words", "number"),
    [
        (jobs.jobs, ["scale", "svc", "-1"], "-1"),
        (prices.prices, ["set", "L4", "-0.80"], "-0.80"),
        (prices.prices, ["set", "L4", "-.8"], "-.8"),
        (pipelines.pipelines, ["rollback", "p", "-1"], "-1"),
    ],
)
def test_a_negative_number_is_called_one_and_no_option(
    group: click.Group, words: list[str], number: str
) -> None:
    refused = CliRunner().invoke(group, words)
    assert refused.exit_code == Exit.USAGE
    assert f"The number must not be negative: {number}." in refused.output


def test_an_option_that_is_not_there_is_still_called_one() -> None:
    refused = CliRunner().invoke(prices.prices, ["set", "L4", "--corrency"])
    assert refused.exit_code == Exit.USAGE
    assert "No such option" in refused.output
