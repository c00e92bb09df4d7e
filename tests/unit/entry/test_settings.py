"""Settings: documented, frozen, and strict about what they do not know."""

import re
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuplane.core.workloads import Priority
from gpuplane.entry.assembling import uptimes_of
from gpuplane.entry.commands import up
from gpuplane.entry.described import SettingsError
from gpuplane.entry.environment import Described, describe_settings, load_settings
from tools.make_settings_page import render

ROOT = Path(__file__).parents[3]


def test_every_setting_is_documented_with_its_unit_and_reason() -> None:
    assert (ROOT / "docs/reference/settings.md").read_text(encoding="utf-8") == render()
    assert all(row.unit and row.reason for row in describe_settings())


def test_every_documented_variable_is_read() -> None:
    samples = {
        "home": "/tmp/x", "database_url": "postgresql://h/d", "log_level": "debug",
        "telemetry_otlp_endpoint": "http://h:4318",
    }  # fmt: skip
    for row in describe_settings():
        name = row.variable.removeprefix("GPUPLANE_").lower()
        value = samples.get(name) or row.default or "text"
        loaded = load_settings({row.variable: value.lower() if row.default == "true" else value})
        assert loaded is not None


def test_an_unknown_variable_is_an_error_that_offers_the_nearest() -> None:
    with pytest.raises(SettingsError, match="Did you mean GPUPLANE_PORT"):
        load_settings({"GPUPLANE_PROT": "80"})


def test_variables_of_the_client_and_of_jobs_are_left_alone() -> None:
    loaded = load_settings({"GPUPLANE_URL": "http://x", "GPUPLANE_JOB_ID": "1", "PATH": "/bin"})
    assert loaded.port == 7070


def test_variables_of_the_rig_and_of_tests_are_left_alone() -> None:
    told = (ROOT / "docs/operations/rig.md").read_text(encoding="utf-8")
    variables = {*re.findall(r"GPUPLANE_[A-Z_]+", told), "GPUPLANE_WALK", "GPUPLANE_DATA"}
    assert {"GPUPLANE_RIG", "GPUPLANE_RIG_CACHE", "GPUPLANE_PUBLISHED_CHARTS"} <= variables
    assert load_settings(dict.fromkeys(variables, "/tmp/x")) == load_settings({})
    with pytest.raises(SettingsError, match="GPUPLANE_RIGG is no setting"):
        load_settings({"GPUPLANE_RIGG": "/tmp/x"})


def test_a_value_of_the_wrong_kind_names_the_variable_and_what_was_expected() -> None:
    with pytest.raises(SettingsError, match="GPUPLANE_PORT='many' is not a whole number"):
        load_settings({"GPUPLANE_PORT": "many"})
    with pytest.raises(SettingsError, match="GPUPLANE_SCHEDULING_PREEMPTION"):
        load_settings({"GPUPLANE_SCHEDULING_PREEMPTION": "perhaps"})


@pytest.mark.parametrize("port", ["-1", "65536"])
def test_a_port_out_of_range_is_refused(port: str) -> None:
    with pytest.raises(SettingsError, match="GPUPLANE_PORT must lie in"):
        load_settings({"GPUPLANE_PORT": port})


@pytest.mark.parametrize("points", ["-1", "101"])
def test_a_hint_of_more_points_than_a_score_has_is_refused(points: str) -> None:
    with pytest.raises(SettingsError, match=r"HINT_POINTS must lie in 0\.\.100"):
        load_settings({"GPUPLANE_SCHEDULING_HINT_POINTS": points})


def test_every_number_has_bounds_and_its_default_lies_in_them() -> None:
    for row in describe_settings():
        if row.default.replace(".", "", 1).isdigit():
            assert re.fullmatch(r"[\d.]+?\.\.\d+", row.values), row


@pytest.mark.parametrize("row", [row for row in describe_settings() if ".." in row.values],
                         ids=lambda row: row.variable)  # fmt: skip
def test_a_number_beyond_its_bounds_is_refused_by_name_bounds_and_default(row: Described) -> None:
    low, high = row.values.split("..", 1)
    whole = "." not in row.default
    assert load_settings({row.variable: high}) is not None
    outside = ["-1", str(int(high) + 1), "9" * 400]
    for text in outside if whole else [*outside, "nan", "inf", "-inf"]:
        with pytest.raises(SettingsError) as refused:
            load_settings({row.variable: text})
        assert str(refused.value).startswith(f"{row.variable} must lie in {low}..{high}, not ")
        assert str(refused.value).endswith(f"Leave it out for the default, {row.default}.")


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("GPUPLANE_RETENTION_JOBS_DAYS", "-1"),
        ("GPUPLANE_LOOPS_MONITOR_S", "nan"),
        ("GPUPLANE_LOOPS_SCHEDULER_S", "0"),
        ("GPUPLANE_LIMITS_ARRAY_SIZE", "-5"),
        ("GPUPLANE_HTTP_BODY_BYTES", "-1"),
        ("GPUPLANE_TARGETS_CRITICAL_UPTIME", "500"),
    ],
)
def test_up_ends_with_the_usage_code_for_a_number_that_cannot_hold(
    variable: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, text)
    done = CliRunner().invoke(up, ["--home", str(tmp_path / "home")])
    assert done.exit_code == 2
    assert f"{variable} must lie in" in done.output
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("variable", "text", "named"),
    [
        ("GPUPLANE_SCHEDULING_PLACEMENT", "foo", "fragmentation, balanced, leastLoaded"),
        ("GPUPLANE_SCHEDULING_PLACEMENT", "balance", "Did you mean balanced?"),
        ("GPUPLANE_LOG_LEVEL", "loud", "debug, info, warning, error"),
    ],
)
def test_a_word_without_a_meaning_is_refused_with_those_that_have_one(
    variable: str, text: str, named: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings({variable: text})
    assert str(refused.value).startswith(f"{variable} must be one of ")
    assert named in str(refused.value)


def test_a_home_of_a_user_who_is_not_there_is_refused() -> None:
    with pytest.raises(SettingsError, match="GPUPLANE_HOME='~nobody-of-this-name/x' is no folder"):
        load_settings({"GPUPLANE_HOME": "~nobody-of-this-name/x"})


def test_a_home_that_is_set_and_empty_is_not_the_folder_one_stands_in() -> None:
    with pytest.raises(SettingsError, match="GPUPLANE_HOME is set and empty"):
        load_settings({"GPUPLANE_HOME": ""})


@pytest.mark.parametrize(
    "url", ["localhost:4318", "ftp://h/x", "http://", "http://h:0", "http://h:x", "http://a b"]
)
def test_an_endpoint_for_traces_that_is_no_http_url_is_refused_at_the_start(url: str) -> None:
    with pytest.raises(SettingsError, match="no http or https URL") as refused:
        load_settings({"GPUPLANE_TELEMETRY_OTLP_ENDPOINT": url})
    assert repr(url) in str(refused.value)


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:4318", "https://otel.example/x"])
def test_an_endpoint_for_traces_may_be_any_http_url_or_none(url: str) -> None:
    loaded = load_settings({"GPUPLANE_TELEMETRY_OTLP_ENDPOINT": url})
    assert loaded.telemetry.otlp_endpoint == url


def test_a_database_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(SettingsError, match="GPUPLANE_DATABASE_URL starts with 'mysql'"):
        load_settings({"GPUPLANE_DATABASE_URL": "mysql://h/d"})


def test_the_command_line_comes_before_the_environment() -> None:
    assert load_settings({"GPUPLANE_PORT": "1"}, port=2).port == 2


def test_a_grouped_setting_is_read_by_its_group_and_name() -> None:
    assert load_settings({"GPUPLANE_LOOPS_MONITOR_S": "0.5"}).loops.monitor_s == 0.5


def test_settings_are_frozen() -> None:
    settings = load_settings({})
    with pytest.raises(FrozenInstanceError):
        settings.port = 1  # type: ignore[misc]  # the point of the test


def test_without_a_database_sqlite_lies_in_the_home() -> None:
    loaded = load_settings({"GPUPLANE_HOME": "/tmp/somewhere"})
    assert loaded.sql_url == "sqlite:////tmp/somewhere/gpuplane.db"


def test_uptime_targets_in_percent_are_parts_of_a_million_of_a_window_of_days() -> None:
    environment = {"GPUPLANE_TARGETS_UPTIME_WINDOW_DAYS": "7", "GPUPLANE_TARGETS_HIGH_UPTIME": "0"}
    targets = uptimes_of(load_settings(environment))
    assert targets.window_ms == 7 * 24 * 3600 * 1000
    assert targets.by_priority == {
        Priority.CRITICAL: 999_900,
        Priority.HIGH: 0,
        Priority.NORMAL: 995_000,
    }
