"""The programs a real cluster needs: found on this machine, or built once by Go and kept.

It looks on PATH, in KUBEBUILDER_ASSETS, then in a cache folder keyed by a hash of the module files
and flags, and builds when `go` is there. A cached program is used only while its bytes are those
that were built. It never installs anything and leaves no build cache behind.
By hand: `python -m rig binaries`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MODULES = Path(__file__).parent / "binaries"
CACHE_VARIABLE = "GPUPLANE_RIG_CACHE"
SUMS = "SHA256SUMS"
NICENESS = 5  # a build takes minutes of every core
DISK_MIB = 8_192  # the build cache of the largest program, with the modules it downloads
KUBERNETES = "v1.34.4"

_STAMP = "k8s.io/component-base/version"
_STAMPS = {  # without them clients see v0.0.0
    "gitVersion": KUBERNETES,
    "gitMajor": "1",
    "gitMinor": "34",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
}


class BinariesUnavailable(Exception):
    """The programs are not on this machine and cannot be built; the message says why."""


@dataclass(frozen=True)
class Build:
    """One Go module of ours and what is built from it.

    Attributes:
        name: Its folder under `rig/binaries`.
        package: The Go package to build.
        programs: The names it is called by; the first is the file, the others are links to it.
        link_flags: What the linker is told, for instance the version to report.
        folders: Folders of the module `package` belongs to that are needed beside the program.
        replaced: A file of that module with a text in it and what stands there in our build.
        found_elsewhere: Whether programs of these names on PATH do as well.
    """

    name: str
    package: str
    programs: tuple[str, ...]
    link_flags: str
    folders: tuple[str, ...] = ()
    replaced: tuple[str, str, str] | None = None
    found_elsewhere: bool = True


BUILDS = (
    Build(
        "kubernetes",
        ".",
        ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"),
        " ".join(f"-X {_STAMP}.{name}={value}" for name, value in _STAMPS.items()),
    ),
    Build("streams", ".", ("rig-streams",), "", found_elsewhere=False),
    Build(
        "kwok",
        "sigs.k8s.io/kwok/cmd/kwok",
        ("kwok",),
        "-X sigs.k8s.io/kwok/pkg/consts.Version=v0.7.0",
    ),
    Build(
        "kueue",
        "sigs.k8s.io/kueue/cmd/kueue",
        ("kueue",),
        "-X sigs.k8s.io/kueue/pkg/version.GitVersion=v0.15.0",
        folders=("charts/kueue",),
        # A path in /etc is the one thing it takes no setting for; ours is in its working folder.
        replaced=("cmd/kueue/main.go", '"/etc/kueue/metrics/certs"', '"metrics-certificates"'),
        found_elsewhere=False,
    ),
    Build(
        "helm",
        "helm.sh/helm/v4/cmd/helm",
        ("helm",),
        "-X helm.sh/helm/v4/internal/version.version=v4.3.1",
    ),
)
JOBSET = Build(
    "jobset",
    "sigs.k8s.io/jobset",
    ("jobset",),
    "-X sigs.k8s.io/jobset/pkg/version.GitVersion=v0.10.1",
    folders=("charts/jobset",),
    found_elsewhere=False,
)
"""JobSet's controller: only a rig that is to have it needs it."""


@dataclass(frozen=True)
class Source:
    """Folders of somebody's Go module that are taken as they are; nothing of it is built.

    Attributes:
        checksum: Of the module as Go tells it (`h1:…`): other bytes are refused.
        folders: What is taken of it.
    """

    name: str
    module: str
    version: str
    checksum: str
    folders: tuple[str, ...]
    programs: tuple[str, ...] = ()
    found_elsewhere: bool = False


KEDA = Source(
    "keda",
    "github.com/kedacore/keda/v2",
    "v2.18.1",
    "h1:h6bRt/IOxxtZpJlHSqhdH/lcInH7Z9obxg/JvWOmGAw=",
    ("config/crd/bases",),
)
"""The definitions of KEDA's kinds. Its operator brings the clients of all that it can ask, and
takes longer to build than all other programs together."""


@dataclass(frozen=True)
class Binaries:
    """Where each program is, by name, and the folders that came with them (`charts/kueue`)."""

    programs: dict[str, Path]
    folders: dict[str, Path]

    def __getitem__(self, program: str) -> str:
        return str(self.programs[program])


def find_binaries(more: Sequence[Build | Source] = ()) -> Binaries:
    """Return the programs that every rig needs, and those of `more`, without building anything.

    Raises:
        BinariesUnavailable: If one is missing, with what to do about it.
    """
    found = Binaries({}, {})
    for build in (*BUILDS, *more):
        folder = _find(build)
        if folder is None:
            what = (*build.programs, build.name)[0]
            raise BinariesUnavailable(
                f"kubernetes: no {what} on PATH, in KUBEBUILDER_ASSETS or in "
                f"{_cache()}: `python -m rig binaries` builds it where go is installed"
            )
        _add(found, build, folder)
    return found


def ensure_binaries(
    announce: Callable[[str], None] = print, more: Sequence[Build | Source] = ()
) -> Binaries:
    """Return the programs that every rig needs, and those of `more`, building what is missing.

    It says through `announce` what takes long.

    Raises:
        BinariesUnavailable: If there is no `go`, not enough disk, or a build fails.
    """
    found = Binaries({}, {})
    for build in (*BUILDS, *more):
        folder = _find(build)
        if folder is None:
            with _one_builder_at_a_time():
                folder = _find(build) or _build(build, announce)
        _add(found, build, folder)
    return found


def _add(found: Binaries, build: Build | Source, folder: Path) -> None:
    found.programs.update((name, folder / name) for name in build.programs)
    found.folders.update((name, folder / name) for name in build.folders)


def _find(build: Build | Source) -> Path | None:
    """Return a folder with all programs of a build: versions of two places are never mixed."""
    places = []
    if build.found_elsewhere:
        on_path = shutil.which(build.programs[0])
        places += [Path(on_path).parent] if on_path else []
        assets = os.environ.get("KUBEBUILDER_ASSETS")
        places += [Path(assets)] if assets else []
    for place in places:
        if all(os.access(place / name, os.X_OK) for name in build.programs):
            return place
    cached = cache_folder(build)
    return cached if _is_as_built(cached) else None


def _cache() -> Path:
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen)
    # Not $HOME: every test has one of its own, and the programs are the machine's.
    return Path(pwd.getpwuid(os.getuid()).pw_dir, ".cache", "gpuplane-rig")


def cache_folder(build: Build | Source) -> Path:
    """Return where a build is kept: another folder for other module files or flags."""
    digest = hashlib.sha256(repr(build).encode())
    files = (MODULES / build.name).iterdir() if isinstance(build, Build) else ()
    for path in sorted(files):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return _cache() / f"{build.name}-{digest.hexdigest()[:16]}"


def write_sums(folder: Path) -> None:
    """Write the checksums of all files of a build, which are looked at before each use."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    (folder / SUMS).write_text(
        "".join(f"{_sha256(path)}  {path.relative_to(folder)}\n" for path in files)
    )


def _is_as_built(folder: Path) -> bool:
    sums = folder / SUMS
    if not sums.is_file():
        return False
    for line in sums.read_text().splitlines():
        expected, _, name = line.partition("  ")
        path = folder / name
        if not path.is_file() or _sha256(path) != expected:
            return False
    return True


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _one_builder_at_a_time() -> Iterator[None]:
    """Hold a lock: two builds at once would take twice the memory and finish no sooner."""
    _cache().mkdir(parents=True, exist_ok=True)
    with (_cache() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(build: Build | Source, announce: Callable[[str], None]) -> Path:
    go = shutil.which("go")
    if go is None:
        what = (*build.programs, build.name)[0]
        raise BinariesUnavailable(
            f"kubernetes: {what} is not on this machine and there is no go to build it"
        )
    if isinstance(build, Source):
        return _fetch(go, build)
    free_mib = shutil.disk_usage(_cache()).free // 2**20
    if free_mib < DISK_MIB:
        raise BinariesUnavailable(
            f"kubernetes: building {build.name} takes {DISK_MIB} MiB of disk, {free_mib} are free"
        )
    announce(f"building {build.name} (once; a few minutes)")
    target = cache_folder(build)
    with tempfile.TemporaryDirectory(dir=_cache(), prefix=f"build-{os.getpid()}-") as work:
        made = Path(work, "made")
        made.mkdir()
        _run_go(go, build, made / build.programs[0], Path(work, "cache"))
        for name in build.programs[1:]:
            (made / name).symlink_to(build.programs[0])
        if build.folders:
            _copy_folders(_module_folder(go, build), build.folders, made)
        write_sums(made)
        shutil.rmtree(target, ignore_errors=True)
        made.rename(target)
    return target


def _fetch(go: str, source: Source) -> Path:
    """Keep folders of a module that Go downloads, if it is the module that was looked at."""
    done = subprocess.run(
        [go, "mod", "download", "-json", f"{source.module}@{source.version}"],
        cwd=_cache(),
        env={**os.environ, "GOFLAGS": "", "GOWORK": "off"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    told = json.loads(done.stdout or "{}")
    if done.returncode != 0 or told.get("Sum") != source.checksum:
        why = told.get("Error") or f"its checksum is {told.get('Sum')}"
        raise BinariesUnavailable(f"kubernetes: {source.module} {source.version}: {why}")
    target = cache_folder(source)
    with tempfile.TemporaryDirectory(dir=_cache(), prefix=f"fetch-{os.getpid()}-") as work:
        made = Path(work, "made")
        made.mkdir()
        _copy_folders(Path(told["Dir"]), source.folders, made)
        write_sums(made)
        shutil.rmtree(target, ignore_errors=True)
        made.rename(target)
    return target


def _copy_folders(module: Path, folders: Sequence[str], made: Path) -> None:
    for folder in folders:
        shutil.copytree(module / folder, made / folder, copy_function=shutil.copyfile)
        for copied in (made / folder, *(made / folder).rglob("*/")):
            copied.chmod(0o755)  # Go keeps its modules read-only


def _run_go(go: str, build: Build, output: Path, cache: Path) -> None:
    command = ["nice", "-n", str(NICENESS), go, "build", "-mod=readonly", "-trimpath"]
    command += ["-buildvcs=false", "-ldflags", f"-s -w {build.link_flags}".strip()]
    command += ["-o", str(output)]
    if build.replaced is None:
        folder, package = MODULES / build.name, build.package
    else:
        folder = _changed_source(go, build, cache.with_name("source"))
        package = f"./{Path(build.replaced[0]).parent}"
    command += [package]
    done = subprocess.run(
        command,
        cwd=folder,
        # Flags and workspaces of the developer are not ours; CGO would tie the result to a libc.
        env={
            **os.environ,
            "GOCACHE": str(cache),
            "GOFLAGS": "",
            "GOWORK": "off",
            "CGO_ENABLED": "0",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BinariesUnavailable(f"kubernetes: go build {build.name}: {done.stdout[-2000:]}")


def _changed_source(go: str, build: Build, copy: Path) -> Path:
    """Copy the module that a package belongs to, with the text in one file replaced."""
    assert build.replaced is not None
    name, text, instead = build.replaced
    shutil.copytree(_module_folder(go, build), copy, copy_function=shutil.copyfile)
    for folder in (copy, *copy.rglob("*/")):
        folder.chmod(0o755)  # Go keeps its modules read-only
    original = (copy / name).read_text()
    if original.count(text) != 1:
        raise BinariesUnavailable(f"kubernetes: {build.name}'s {name} has no single {text}")
    (copy / name).write_text(original.replace(text, instead))
    return copy


def _module_folder(go: str, build: Build) -> Path:
    """Return where Go keeps the module that a package belongs to."""
    done = subprocess.run(
        [go, "list", "-mod=readonly", "-f", "{{.Module.Dir}}", build.package],
        cwd=MODULES / build.name,
        env={**os.environ, "GOFLAGS": "", "GOWORK": "off"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return Path(done.stdout.strip())
