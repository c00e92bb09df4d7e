"""Where the rig's programs are looked for, and which of them are used."""

from __future__ import annotations

from pathlib import Path

import pytest

from rig import binaries
from rig.binaries import BUILDS, JOBSET, BinariesUnavailable, ensure_binaries, find_binaries


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and nothing on PATH or in KUBEBUILDER_ASSETS."""
    empty = tmp_path / "bin"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv(binaries.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def put_program(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return program


def fill(cache: Path) -> None:
    """Put every program into the cache as a build would."""
    for build in BUILDS:
        folder = binaries.cache_folder(build)
        for name in build.programs:
            put_program(folder, name)
        binaries.write_sums(folder)


def test_without_any_place_that_has_them_the_reason_says_what_to_do(cache: Path) -> None:
    with pytest.raises(BinariesUnavailable, match=r"kubernetes: no etcd .* rig binaries"):
        find_binaries()


def test_without_go_nothing_can_be_built(cache: Path) -> None:
    with pytest.raises(BinariesUnavailable, match="there is no go"):
        ensure_binaries(lambda _: None)


def test_programs_that_were_built_are_found_again(cache: Path) -> None:
    fill(cache)
    assert Path(find_binaries()["kueue"]).is_relative_to(cache)


def test_what_only_some_rigs_have_is_wanted_by_them_alone(cache: Path) -> None:
    fill(cache)
    assert "jobset" not in find_binaries().programs
    with pytest.raises(BinariesUnavailable, match="no jobset"):
        find_binaries((JOBSET,))


def test_a_program_whose_bytes_changed_is_not_used(cache: Path) -> None:
    fill(cache)
    Path(find_binaries()["kwok"]).write_text("#!/bin/sh\necho another\n")
    with pytest.raises(BinariesUnavailable, match="no kwok"):
        find_binaries()


def test_versions_of_two_places_are_not_mixed(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cache)
    assets = tmp_path / "assets"
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    for name in ("etcd", "kube-apiserver", "kubectl"):  # what the usual archives of assets hold
        put_program(assets, name)
    assert Path(find_binaries()["etcd"]).is_relative_to(cache)
    for name in ("kube-controller-manager", "kube-scheduler"):
        put_program(assets, name)
    assert Path(find_binaries()["etcd"]).is_relative_to(assets)


def test_a_changed_module_is_another_program(cache: Path) -> None:
    folders = {binaries.cache_folder(build).name for build in BUILDS}
    assert len(folders) == len(BUILDS)
    assert all(folder.rpartition("-")[2].isalnum() for folder in folders)
