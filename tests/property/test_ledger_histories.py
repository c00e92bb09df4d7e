"""Whatever happens to devices, and whatever the clock does, the ledger tiles their time."""

from __future__ import annotations

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.integration.ledger.histories import Histories, open_database


def test_random_histories_tile_the_time_of_every_device(sqlite_url: str) -> None:
    database = open_database(sqlite_url)

    class OnThisDatabase(Histories):
        pass

    OnThisDatabase.database = database
    try:
        run_state_machine_as_test(
            OnThisDatabase, settings=settings(max_examples=15, stateful_step_count=25)
        )
    finally:
        database.close()
