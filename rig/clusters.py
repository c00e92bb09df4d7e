"""One Kubernetes cluster without containers: etcd, API server, controllers, scheduler, nodes.

Everything listens on 127.0.0.1 and keeps its files in one folder. It never keeps data safe: etcd
does not wait for a disk.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rig.api import Access, Api
from rig.binaries import Binaries
from rig.certificates import Authority, Pair, make_service_account_keys
from rig.jobset import NAMESPACE as JOBSET_NAMESPACE
from rig.jobset import apply_jobset, prepare_jobset
from rig.kueue import NAMESPACE as KUEUE_NAMESPACE
from rig.kueue import apply_kueue, prepare_kueue
from rig.operators import OperatorFiles, apply_definitions
from rig.ports import find_free_port
from rig.processes import Part, RigFailed, is_listening

SERVICES = "10.96.0.0/16"
START_ATTEMPTS = 3  # a port that was free may be taken before the program binds it
PART_READY_S = 60.0
API_READY_S = 120.0  # 3 s on an idle machine; others share ours
PARTS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "rig-streams",
    "rig-kubelet",
    "kwok",
    "jobset",
    "kueue",
)
STAGES = Path(__file__).parent / "stages.yaml"
CALLS_A_SECOND = 300
"""Of the controllers and of the scheduler, as Kueue has them here. By default the controllers make
20, which is four Jobs a second, and what is tried here would wait for them."""
LEASE_S = 40
"""How long the lease of a fake node holds; it is renewed after a quarter of that. Controllers take
a node for dead whose lease is older by `GRACE_S`."""
GRACE_S = 10
PROJECT = Path(__file__).parents[1]


@dataclass
class Ports:
    """The loopback ports of one cluster."""

    etcd: int = field(default_factory=find_free_port)
    etcd_peer: int = field(default_factory=find_free_port)
    api: int = field(default_factory=find_free_port)
    streams: int = field(default_factory=find_free_port)
    kwok: int = field(default_factory=find_free_port)
    webhook: int = field(default_factory=find_free_port)
    kueue_health: int = field(default_factory=find_free_port)
    jobset_webhook: int = field(default_factory=find_free_port)
    jobset_health: int = field(default_factory=find_free_port)


class Cluster:
    """A running cluster and its parts by name.

    Attributes:
        name: `manager` or `worker-1` …
        folder: Everything it writes.
        parts: Its programs, to be stopped, killed, frozen and started again.
        access: Its API server as an administrator.
        kubeconfig: A file with the same.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        binaries: Binaries,
        *,
        kueue: bool,
        jobset: bool = False,
        keda: bool = False,
        lease_s: int = LEASE_S,
    ) -> None:
        self.name = name
        self.folder = folder
        self.parts: dict[str, Part] = {}
        self.kubeconfig = folder / "kubeconfig"
        self._binaries = binaries
        self._with_kueue = kueue
        self._with_jobset = jobset
        self._with_keda = keda
        self._lease_s = lease_s
        self._logs = folder / "logs"
        self._certificates = folder / "certificates"
        for made in (folder, self._logs, self._certificates, folder / "pods"):
            made.mkdir(parents=True, exist_ok=True)
        self._authority = Authority(self._certificates, f"gpuplane-rig {name}")
        self._accounts = make_service_account_keys(self._certificates)
        self._token = secrets.token_urlsafe(24)
        self._write_tokens()

    def start(self, announce: Callable[[str], None]) -> None:
        """Start every part and wait until all answer.

        Raises:
            RigFailed: If a part does not come up.
        """
        self._start_api()
        announce(f"{self.name}: API server {self.access.url}")
        self.kubeconfig.write_text(self.access.kubeconfig(f"rig-{self.name}"))
        self.kubeconfig.chmod(0o600)
        for part in self._workers():
            self.parts[part.name] = part
            part.start()
        kueue = prepare_kueue(self._kueue_files()) if self._with_kueue else None
        jobset = prepare_jobset(self._jobset_files()) if self._with_jobset else None
        for part in list(self.parts.values()):
            part.wait_ready()
        api = self.api()
        try:
            if self._with_keda:
                apply_definitions(self._binaries.folders["config/crd/bases"], api)
                announce(f"{self.name}: KEDA's kinds")
            # First: Kueue looks at its own start which kinds of jobs there are.
            if jobset is not None:
                self.parts["jobset"] = apply_jobset(self._jobset_files(), jobset, api)
                announce(f"{self.name}: JobSet")
            if kueue is not None:
                self.parts["kueue"] = apply_kueue(self._kueue_files(), kueue, api)
                announce(f"{self.name}: Kueue")
        finally:
            api.close()

    def api(self) -> Api:
        """Return a client of the API server; the caller closes it."""
        return Api(self.access)

    @property
    def access(self) -> Access:
        url = f"https://127.0.0.1:{self.ports.api}"
        return Access(url, self._authority.pair.certificate, self._token)

    def stop(self) -> None:
        """Stop every part, last started first; safe to call twice."""
        for name in reversed(PARTS):
            if name in self.parts:
                self.parts[name].stop()

    def _write_tokens(self) -> None:
        self._tokens = self._certificates / "tokens.csv"
        self._tokens.touch(mode=0o600)
        self._tokens.write_text(f'{self._token},rig-admin,rig-admin,"system:masters"\n')

    def _start_api(self) -> None:
        for attempt in range(START_ATTEMPTS):
            self.ports = Ports()
            self.parts = {"etcd": self._etcd(), "kube-apiserver": self._api_server()}
            try:
                for part in self.parts.values():
                    part.start_again()
                return
            except RigFailed:
                self.stop()
                if attempt == START_ATTEMPTS - 1:
                    raise

    def _part(
        self,
        name: str,
        arguments: list[str],
        is_ready: Callable[[], bool],
        ready_s: float = PART_READY_S,
    ) -> Part:
        command = [self._binaries[name], *arguments]
        return Part(name, command, self._logs / f"{name}.log", self.folder, is_ready, ready_s)

    def _etcd(self) -> Part:
        client = f"http://127.0.0.1:{self.ports.etcd}"
        peer = f"http://127.0.0.1:{self.ports.etcd_peer}"
        arguments = [
            "--name=rig",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=rig={peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]
        return self._part("etcd", arguments, lambda: is_listening(self.ports.etcd))

    def _api_server(self) -> Part:
        serving = self._authority.server(
            "kube-apiserver", ("127.0.0.1", "localhost", "kubernetes.default.svc", "10.96.0.1")
        )
        to_nodes = self._authority.client("kube-apiserver-kubelet-client", ["system:masters"])
        arguments = [
            f"--etcd-servers=http://127.0.0.1:{self.ports.etcd}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.ports.api}",
            f"--cert-dir={self._certificates}",
            *_tls(serving, "tls-cert-file", "tls-private-key-file"),
            *_tls(to_nodes, "kubelet-client-certificate", "kubelet-client-key"),
            f"--client-ca-file={self._authority.pair.certificate}",
            f"--token-auth-file={self._tokens}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            # As kubeadm and the clouds have it: device plugins need it, Pod Security refuses it.
            "--allow-privileged=true",
            "--service-account-issuer=https://kubernetes.default.svc",
            *_tls(self._accounts, "service-account-key-file", "service-account-signing-key-file"),
            f"--service-cluster-ip-range={SERVICES}",
            # Loopback can be nobody's endpoint, and nothing here goes through a Service.
            "--endpoint-reconciler-type=none",
            "--kubelet-preferred-address-types=InternalIP",
            "--profiling=false",
            # Tests stop it often: no waiting for watches to end.
            "--shutdown-delay-duration=0s",
        ]
        return self._part("kube-apiserver", arguments, self._api_answers, ready_s=API_READY_S)

    def _api_answers(self) -> bool:
        if not is_listening(self.ports.api):
            return False
        api = self.api()
        try:
            return api.is_ready()
        finally:
            api.close()

    def _workers(self) -> list[Part]:
        """Return what needs the API server and nothing of each other."""
        reach = f"--kubeconfig={self.kubeconfig}"
        quiet = ["--leader-elect=false", "--profiling=false", "--authentication-skip-lookup=true"]
        quiet += [f"--kube-api-qps={CALLS_A_SECOND}", f"--kube-api-burst={2 * CALLS_A_SECOND}"]
        controllers = [
            reach,
            *quiet,
            "--secure-port=0",
            f"--node-monitor-grace-period={self._lease_s + GRACE_S}s",
            f"--service-account-private-key-file={self._accounts.key}",
            f"--root-ca-file={self._authority.pair.certificate}",
            *_tls(self._authority.pair, "cluster-signing-cert-file", "cluster-signing-key-file"),
        ]
        kwok = [
            reach,
            f"--config={STAGES}",
            "--manage-all-nodes=false",
            "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
            f"--server-address=127.0.0.1:{self.ports.kwok}",
            f"--node-port={self.ports.kwok}",
            "--node-ip=127.0.0.1",
            f"--node-lease-duration-seconds={self._lease_s}",
        ]
        return [
            self._part("kube-controller-manager", controllers, lambda: True),
            self._part("kube-scheduler", [reach, *quiet, "--secure-port=0"], lambda: True),
            self._streams(),
            self._kubelet(),
            self._part("kwok", kwok, lambda: is_listening(self.ports.kwok)),
        ]

    def _streams(self) -> Part:
        serving = self._authority.server("streams")
        arguments = [
            f"--pods={self.folder / 'pods'}",
            f"--address=127.0.0.1:{self.ports.streams}",
            *_tls(serving, "certificate", "key"),
            f"--client-ca={self._authority.pair.certificate}",
        ]
        return self._part("rig-streams", arguments, lambda: is_listening(self.ports.streams))

    def _kubelet(self) -> Part:
        ready = self.folder / "kubelet-ready"
        command = [
            *(sys.executable, "-m", "rig.kubelet"),
            *("--url", self.access.url),
            *("--authority", str(self._authority.pair.certificate)),
            *("--tokens", str(self._tokens)),
            *("--pods", str(self.folder / "pods")),
            *("--port", str(self.ports.streams)),
            *("--ready", str(ready)),
        ]
        return Part(
            "rig-kubelet",
            command,
            self._logs / "rig-kubelet.log",
            PROJECT,
            ready.exists,
        )

    def _kueue_files(self) -> OperatorFiles:
        ports = self.ports.webhook, self.ports.kueue_health
        return self._operator_files("kueue", KUEUE_NAMESPACE, *ports)

    def _jobset_files(self) -> OperatorFiles:
        ports = self.ports.jobset_webhook, self.ports.jobset_health
        return self._operator_files("jobset", JOBSET_NAMESPACE, *ports)

    def _operator_files(
        self, name: str, namespace: str, webhook_port: int, health_port: int
    ) -> OperatorFiles:
        return OperatorFiles(
            name=name,
            namespace=namespace,
            folder=self.folder / name,
            kubeconfig=self.kubeconfig,
            log=self._logs / f"{name}.log",
            authority=self._authority,
            binaries=self._binaries,
            webhook_port=webhook_port,
            health_port=health_port,
        )


def _tls(pair: Pair, certificate: str, key: str) -> list[str]:
    return [f"--{certificate}={pair.certificate}", f"--{key}={pair.key}"]
