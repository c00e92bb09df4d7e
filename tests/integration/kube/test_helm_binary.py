"""How the helm binary is run: what it is given, what it is not, and that nothing of it stays.

The binary here is a script of the test's own that tells what it was given; the real one is tried
in `tests/kubernetes`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuplane.kube.credentials import Connection
from gpuplane.kube.helm import Chart, Helm, HelmError, Release
from gpuplane.kube.processes import OutOfTime, TooMuchSaid, run_program, secret_file
from tests.waiting import wait_until_async

CONNECTION = Connection("https://10.0.0.5:6443", ca_pem="CA", token="the-token")
ENVIRONMENT = {"PATH": os.environ["PATH"]}


def is_there(path: str) -> bool:
    return os.path.lexists(path)


class Binary:
    """A `helm` that notes how it was called and answers what the test says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "helm"
        self.answers("{}")

    def answers(self, text: str, *, code: int = 0, error: str = "", script: str = "") -> None:
        (self.folder / "answer").write_text(text, encoding="utf-8")
        (self.folder / "error").write_text(error, encoding="utf-8")
        self.path.write_text(
            "#!/bin/sh\n"
            f"cd {self.folder}\n"
            'printf "%s\\0" "$@" > arguments\n'
            "env > environment\n"
            'while [ "$1" != --kubeconfig ]; do shift; done\n'
            'cat "$2" > kubeconfig; ls -lL "$2" > mode; echo "$2" > place\n'
            f"cat > stdin\n{script}\ncat error >&2\ncat answer\nexit {code}\n",
            encoding="utf-8",
        )
        self.path.chmod(0o755)

    def told(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="utf-8")

    def arguments(self) -> list[str]:
        return self.told("arguments").split("\0")[:-1]


@pytest.fixture
def binary(tmp_path: Path) -> Binary:
    return Binary(tmp_path)


@pytest.fixture
def helm(binary: Binary, tmp_path: Path) -> Helm:
    return Helm(
        CONNECTION, binary=binary.path, home=tmp_path / "home", search_path=os.environ["PATH"]
    )


def a_release(**more: Any) -> str:
    found = {
        "name": "kueue",
        "namespace": "kueue-system",
        "version": 3,
        "info": {"status": "deployed", "description": "Upgrade complete"},
        "chart": {"metadata": {"name": "kueue", "version": "0.15.0", "appVersion": "v0.15.0"}},
        "config": {"password": "told by helm"},
    }
    return json.dumps(found | more)


async def test_values_and_credentials_are_on_no_command_line_and_in_no_environment(
    binary: Binary, helm: Helm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/somebody/elses")
    monkeypatch.setenv("GPUPLANE_SECRET", "ours")
    binary.answers(a_release())
    values = {"webhook": {"password": "correct horse"}}
    chart = Chart("kueue", "0.15.0", "https://charts.example.com")
    found = await helm.upgrade_install("kueue", "kueue-system", chart, values, timeout_s=30)
    assert found == Release(
        "kueue", "kueue-system", 3, "deployed", "kueue-0.15.0", "v0.15.0", "Upgrade complete"
    )
    assert json.loads(binary.told("stdin")) == values
    config = json.loads(binary.told("kubeconfig"))
    assert config["users"][0]["user"] == {"token": "the-token"}
    assert config["clusters"][0]["cluster"]["server"] == CONNECTION.server
    said = binary.told("arguments") + binary.told("environment")
    assert "correct horse" not in said
    assert "the-token" not in said
    assert "/somebody/elses" not in said
    assert "GPUPLANE_SECRET" not in said
    assert binary.told("mode").startswith("-rw-------")
    assert not is_there(binary.told("place").strip())
    assert binary.arguments()[:8] == [
        "upgrade",
        "kueue",
        "kueue",
        "--version",
        "0.15.0",
        "--repo",
        "https://charts.example.com",
        "--install",
    ]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            "Error: UPGRADE FAILED: another operation (install/upgrade/rollback) is in progress",
            "Busy",
        ),
        ("Error: Kubernetes cluster unreachable: dial tcp: connection refused", "Unreachable"),
        ("Error: UPGRADE FAILED: context deadline exceeded", "TimedOut"),
        ('Error: secrets is forbidden: User "x" cannot list resource', "Forbidden"),
        ("Error: failed to download OCI chart", "ChartNotAvailable"),
        ('Error: no matches for kind "Thing" in version "v1"', "NoSuchKind"),
        ("Error: something that nobody has seen", "Failed"),
        ("", "Failed"),
    ],
)
async def test_what_helm_says_becomes_a_word(
    binary: Binary, helm: Helm, error: str, reason: str
) -> None:
    binary.answers("", code=1, error=f"level=WARN msg=x WARN\n{error}\n")
    with pytest.raises(HelmError) as caught:
        await helm.upgrade_install("kueue", "kueue-system", Chart("/charts/kueue"))
    assert caught.value.reason == reason
    assert "WARN" not in caught.value.message


async def test_secrets_that_helm_repeats_are_taken_out(binary: Binary, helm: Helm) -> None:
    binary.answers("", code=1, error="Error: bad value correct horse for the-token\n")
    with pytest.raises(HelmError) as caught:
        await helm.upgrade_install(
            "kueue", "ns", Chart("/c"), {"auth": {"adminPassword": "correct horse"}}
        )
    assert caught.value.message == "bad value ••• for •••"


async def test_a_binary_that_does_not_end_is_ended_with_its_children(
    binary: Binary, helm: Helm, tmp_path: Path
) -> None:
    binary.answers("", script="trap '' TERM; sleep 600 & echo $! > child; wait")
    stopping = asyncio.create_task(helm.version())
    child = await wait_until_async(
        lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text().strip(),
        "the child runs",
    )
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    await wait_until_async(
        lambda: (
            not Path(f"/proc/{child}").exists()
            or "Z" in Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        ),
        "the child is gone",
    )
    assert stopping.cancelled()


async def test_releases_are_read_in_pages_and_all_of_them_from_helm_3(
    binary: Binary, helm: Helm
) -> None:
    one = {
        "name": "a",
        "namespace": "ml",
        "revision": "2",
        "status": "failed",
        "chart": "a-1.0.0",
        "app_version": "7",
    }
    binary.answers(json.dumps([one]))
    assert await helm.list() == (Release("a", "ml", 2, "failed", "a-1.0.0", "7"),)
    assert {"--all-namespaces", "--all"} <= set(binary.arguments())


async def test_an_answer_that_is_no_json_is_told(binary: Binary, helm: Helm) -> None:
    binary.answers('Release "x" has been upgraded. Happy Helming!')
    with pytest.raises(HelmError, match="something else than JSON"):
        await helm.status("x", "ml")


async def test_only_what_renders_is_bound_in_memory(binary: Binary, helm: Helm) -> None:
    binary.answers("{}", script="ulimit -d > bound")
    await helm.template("x", "ml", Chart("/charts/x"), memory_mib=256)
    assert int(binary.told("bound")) == 256 << 10
    await helm.status("x", "ml")
    assert binary.told("bound") == "unlimited\n"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("runtime: out of memory: cannot allocate\nfatal error: out of memory\n", "OutOfMemory"),
        ("fatal error: out of memory allocating heap arena metadata\n", "OutOfMemory"),
        ("Error: execution error at (a.yaml:1): fatal error: no memory given\n", "ChartFailed"),
    ],
)
async def test_a_rendering_that_gets_no_more_memory_is_told_as_such(
    binary: Binary, helm: Helm, error: str, reason: str
) -> None:
    pages = "\n".join(f"goroutine {at}" for at in range(100))
    binary.answers("", code=2, error=error + pages)
    with pytest.raises(HelmError) as caught:
        await helm.template("x", "ml", Chart("/charts/x"), memory_mib=256)
    assert caught.value.reason == reason


async def test_a_missing_binary_and_one_that_cannot_be_run_are_told(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program")
    for name in ("none", "text"):
        helm = Helm(CONNECTION, binary=tmp_path / name, home=tmp_path / "home")
        with pytest.raises(HelmError) as caught:
            await helm.version()
        assert caught.value.reason == "NoBinary"


@pytest.mark.parametrize(
    "chart",
    [
        Chart(""),
        Chart("--post-renderer=/bin/sh"),
        Chart("kueue", "--devel"),
        Chart("kueue", "1.0", "http://charts.example.com"),
        Chart("kueue", "1.0", "file:///etc"),
    ],
)
async def test_what_could_be_an_option_is_no_chart(helm: Helm, chart: Chart) -> None:
    with pytest.raises(ValueError, match="chart"):
        await helm.template("x", "ml", chart)


@pytest.mark.parametrize(
    ("name", "namespace"), [("--x", "ml"), ("A", "ml"), ("x", "-n"), ("x", "")]
)
async def test_what_could_be_an_option_is_no_name(helm: Helm, name: str, namespace: str) -> None:
    with pytest.raises(ValueError, match=r"no name of a release|no namespace"):
        await helm.uninstall(name, namespace)


async def test_a_program_is_ended_when_its_time_is_up() -> None:
    with pytest.raises(OutOfTime, match=r"0\.05 s"):
        await run_program(["sleep", "600"], environment=ENVIRONMENT, timeout_s=0.05)


async def test_a_program_that_says_too_much_is_ended() -> None:
    with pytest.raises(TooMuchSaid):
        await run_program(["yes"], environment=ENVIRONMENT, timeout_s=60)


async def test_a_program_gets_no_more_memory_than_it_may_have() -> None:
    script = "import sys; sys.stdin.read(); print(len(bytearray(512 << 20)))"
    arguments = [sys.executable, "-S", "-c", script]
    ended = await run_program(arguments, environment=ENVIRONMENT, timeout_s=60, memory_mib=256)
    assert ended.code == 1
    assert ended.stderr.endswith(b"MemoryError\n")
    ended = await run_program(arguments, environment=ENVIRONMENT, timeout_s=60, memory_mib=1024)
    assert (ended.code, ended.stdout) == (0, b"%d\n" % (512 << 20))


async def test_of_what_goes_wrong_the_last_part_is_kept() -> None:
    script = "seq 1 100000 >&2; exit 4"
    ended = await run_program(["sh", "-c", script], environment=ENVIRONMENT, timeout_s=60)
    assert (ended.code, ended.stdout) == (4, b"")
    assert ended.stderr.endswith(b"99999\n100000\n")
    assert len(ended.stderr) == 256 << 10


async def test_a_secret_file_is_read_by_who_inherits_it_and_gone_after(tmp_path: Path) -> None:
    with secret_file(b"x" * 300_000) as secret:
        ended = await run_program(
            ["cat", secret.path], environment=ENVIRONMENT, secrets=[secret], timeout_s=60
        )
    assert ended.stdout == b"x" * 300_000
    assert not is_there(secret.path)
