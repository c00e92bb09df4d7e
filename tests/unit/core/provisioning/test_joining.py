"""The join scripts, run by a real bash against a folder instead of the machine's own.

Programs that would change the machine (systemctl, curl, kubeadm, …) are stand-ins on the path
that write down their arguments; what the scripts decide, check and write is real.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gpuplane.core.provisioning.joining import NoScript, Role, join_script
from gpuplane.core.provisioning.specs import ClusterSpec
from tests.unit.core.provisioning.specifications import GOLDEN, of_machines, specs

SCRIPTS = sorted(each.name for each in GOLDEN.glob("*.sh"))
TOKEN = "abcdef.0123456789abcdef"
K3S = b"#!/bin/sh\n"
LOGGED = {
    "systemctl": '[ "$1" != is-active ] || [ -e "$ROOT/active" ] || exit 3\n'
    '[ "$1" != restart ] || touch "$ROOT/active"\n',
    "curl": 'while [ "$1" != -o ]; do shift; done; cp "$ROOT/served" "$2"\n',
    "kubeadm": 'cp "$3" "$ROOT/kubeadm.yaml"; mkdir -p "$ROOT/etc/kubernetes"\n'
    'touch "$ROOT/etc/kubernetes/kubelet.conf"\n',
    "modprobe": "", "sysctl": "", "swapon": '[ ! -e "$ROOT/swap" ] || echo /swap\n',
    "containerd": "echo SystemdCgroup = false\n", "apt-get": "", "apt-mark": "",
    "dpkg-query": 'case "$*" in *kubeadm*) echo 1.33.1-1.1;; esac\n',
}  # fmt: skip
QUIET = {"id": "echo 0\n", "stat": 'echo root "$(/usr/bin/stat -c %a -- "$4")"\n'}


class Machine:
    """A folder that a script takes for the machine, and what its programs were told."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = root / "bin"
        self.bin.mkdir()
        self.token = root / "token"
        self.token.write_text(TOKEN + "\n")
        self.token.chmod(0o600)
        (root / "served").write_bytes(K3S)
        for name, body in {**LOGGED, **QUIET}.items():
            log = f'printf "%s\\n" "{name} $*" >>"$ROOT/log"\n' if name in LOGGED else ""
            (self.bin / name).write_text(f"#!/bin/sh\n{log}{body}")
            (self.bin / name).chmod(0o755)

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        for folder in ("/etc/", "/usr/local/bin/", "/sys/bus/pci/"):
            script = script.replace(folder, f"{self.root}{folder}")
        environment = {
            "PATH": f"{self.bin}:{os.environ['PATH']}", "ROOT": str(self.root),
            "GPUPLANE_JOIN_TOKEN_FILE": str(self.token),
        }  # fmt: skip
        (self.root / "usr/local/bin").mkdir(parents=True, exist_ok=True)
        return subprocess.run(
            ["bash", "-s"], input=script, env=environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip

    def told(self) -> list[str]:
        return (self.root / "log").read_text().splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def lab(digest: bytes = K3S) -> ClusterSpec:
    spec = specs()["lab"]
    assert spec.machines is not None
    sha = hashlib.sha256(digest).hexdigest()
    machines = dataclasses.replace(spec.machines, sha256=(("amd64", sha), ("arm64", sha)))
    return dataclasses.replace(spec, machines=machines)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_one_that_bash_reads(name: str) -> None:
    done = subprocess.run(["bash", "-n", GOLDEN / name], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("name", SCRIPTS)
def test_shellcheck_finds_nothing_in_a_script(name: str) -> None:
    done = subprocess.run(["shellcheck", GOLDEN / name], capture_output=True, check=False)
    assert done.stdout == b""


@pytest.mark.parametrize("role", [Role.FIRST_SERVER, Role.SERVER, Role.AGENT])
def test_k3s_is_installed_once_and_by_its_digest(machine: Machine, role: Role) -> None:
    first = machine.run(join_script(lab(), role))
    assert first.returncode == 0, first.stderr
    assert (machine.root / "usr/local/bin/k3s").read_bytes() == K3S
    kept = machine.root / "etc/rancher/k3s/gpuplane-token"
    assert (kept.read_text().strip(), kept.stat().st_mode & 0o777) == (TOKEN, 0o600)
    config = json.loads((machine.root / "etc/rancher/k3s/config.yaml").read_text())
    assert ("server" in config) is (role is not Role.FIRST_SERVER)
    assert "default-runtime" not in config, "no NVIDIA device is in this folder"
    unit = "k3s-agent" if role is Role.AGENT else "k3s"
    assert f"systemctl restart {unit}.service" in machine.told()

    before = machine.told()
    again = machine.run(join_script(lab(), role))
    assert (again.returncode, "Nothing is to be done" in again.stderr) == (0, True), again.stderr
    later = machine.told()[len(before) :]
    assert [each for each in later if "restart" in each or each.startswith("curl")] == []


def test_a_binary_of_another_digest_is_never_installed(machine: Machine) -> None:
    done = machine.run(join_script(lab(digest=b"another"), Role.FIRST_SERVER))
    assert done.returncode == 1
    assert "digest of k3s is another" in done.stderr
    assert not (machine.root / "usr/local/bin/k3s").exists()
    assert [each for each in machine.told() if "restart" in each] == []


def test_a_machine_with_an_nvidia_device_runs_containers_by_its_runtime(machine: Machine) -> None:
    device = machine.root / "sys/bus/pci/devices/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    toolkit = 'case "$*" in *toolkit*) echo 1.17.8-1;; esac\n'
    (machine.bin / "dpkg-query").write_text(f"#!/bin/sh\n{toolkit}")
    assert machine.run(join_script(lab(), Role.AGENT)).returncode == 0
    config = json.loads((machine.root / "etc/rancher/k3s/config.yaml").read_text())
    assert config["default-runtime"] == "nvidia"
    assert config["node-label"] == ["pool=lab"]


@pytest.mark.parametrize("role", [Role.FIRST_SERVER, Role.AGENT])
def test_kubeadm_gets_the_token_by_a_file_alone(machine: Machine, role: Role) -> None:
    script = join_script(specs()["hall-2"], role)
    done = machine.run(script)
    assert done.returncode == 0, done.stderr
    given = (machine.root / "kubeadm.yaml").read_text()
    assert TOKEN in given
    assert "@TOKEN@" not in given
    verb = "init" if role is Role.FIRST_SERVER else "join"
    assert [each for each in machine.told() if each.startswith(f"kubeadm {verb} --config ")]
    assert [each for each in machine.told() if TOKEN in each] == []
    again = machine.run(script)
    assert "this node is in a cluster" in again.stderr
    assert sum(each.startswith("kubeadm") for each in machine.told()) == 1


@pytest.mark.parametrize(
    ("mode", "text", "said"),
    [
        (0o644, TOKEN, "mode 0600 or 0400"),
        (0o600, "", "is empty"),
        (0o600, "x y", "none of kubeadm"),
    ],
)
def test_a_token_file_that_others_read_or_that_holds_none_is_refused(
    machine: Machine, mode: int, text: str, said: str
) -> None:
    machine.token.write_text(text)
    machine.token.chmod(mode)
    done = machine.run(join_script(specs()["hall-2"], Role.AGENT))
    assert done.returncode == 1
    assert said in done.stderr


def test_a_machine_with_swap_is_refused_before_anything_is_installed(machine: Machine) -> None:
    (machine.root / "swap").touch()
    done = machine.run(join_script(specs()["hall-2"], Role.AGENT))
    assert (done.returncode, "Swap is on" in done.stderr) == (1, True)
    assert [each for each in machine.told() if each.startswith(("apt", "kubeadm"))] == []


@pytest.mark.parametrize("name", sorted(of_machines()))
def test_whoever_is_not_root_changes_nothing(machine: Machine, name: str) -> None:
    (machine.bin / "id").write_text("#!/bin/sh\necho 1000\n")
    done = machine.run(join_script(specs()[name], Role.AGENT))
    assert (done.returncode, "as root" in done.stderr) == (1, True)
    assert not (machine.root / "etc").exists()


def test_kubeadm_joins_no_cluster_whose_authority_is_not_known() -> None:
    spec = specs()["hall-2"]
    assert spec.machines is not None
    unknown = dataclasses.replace(spec.machines, ca_cert_hash="")
    with pytest.raises(NoScript, match="caCertHash"):
        join_script(dataclasses.replace(spec, machines=unknown), Role.AGENT)


def test_a_cloud_has_no_join_script() -> None:
    with pytest.raises(NoScript, match="provision"):
        join_script(specs()["train-eu"], Role.AGENT)
