"""Takes from this process what user code must not have; runs in the child, before that code.

Owns the rlimits, the seccomp filter and the Landlock rules, all by ctypes and all irrevocable.
Neither needs privileges or namespaces, so they hold in containers too. Sources: seccomp(2),
landlock(7), linux/filter.h, linux/seccomp.h, asm/unistd.h.
"""

import contextlib
import ctypes
import errno
import os
import resource
import struct
import sysconfig

PR_SET_PDEATHSIG = 1
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38
CLONE_THREAD = 0x10000
OWN_UID_BASE = 0x70000000
"""With the process id added: a user that nobody else is, so that two runs cannot meet."""
NOBODY = 65534

ENFORCED, COOPERATIVE = "enforced", "cooperative"

_libc = ctypes.CDLL(None, use_errno=True)

# Name: (x86_64, aarch64); None where the machine has no such call.
_CALLS: dict[str, tuple[int | None, int | None]] = {
    "fork": (57, None), "vfork": (58, None), "clone": (56, 220), "clone3": (435, 435),
    "execve": (59, 221), "execveat": (322, 281),
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "kcmp": (312, 272),
    "prctl": (157, 167), "prlimit64": (302, 261), "fcntl": (72, 25), "ioctl": (16, 29),
    "setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119), "sched_setparam": (142, 118), "sched_setattr": (314, 274),
    "migrate_pages": (256, 238), "move_pages": (279, 239),
    "io_uring_setup": (425, 425), "bpf": (321, 280), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282), "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40),
    "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "fsopen": (430, 430),
    "open_tree": (428, 428), "keyctl": (250, 219), "add_key": (248, 217),
    "request_key": (249, 218), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
    "socket": (41, 198),
}  # fmt: skip
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Column of the table, and the AUDIT_ARCH value that names the machine to a filter."""

_ALWAYS = (
    "fork vfork execve execveat tkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_open "
    "pidfd_send_signal pidfd_getfd ptrace process_vm_readv process_vm_writev process_madvise "
    "process_mrelease kcmp setpriority ioprio_set sched_setaffinity sched_setscheduler "
    "sched_setparam sched_setattr migrate_pages move_pages io_uring_setup bpf perf_event_open "
    "userfaultfd unshare setns mount umount2 pivot_root chroot fsopen open_tree keyctl add_key "
    "request_key memfd_create memfd_secret shmget msgget semget mq_open"
).split()
_WITH_ARGUMENT = {
    # F_SETOWN, F_SETSIG, F_SETOWN_EX; FIOSETOWN, SIOCSPGRP: a descriptor could signal the server.
    "fcntl": (1, (8, 10, 15)),
    "ioctl": (1, (0x8901, 0x8902)),
    "prctl": (0, (PR_SET_PDEATHSIG,)),
}

_LD, _JEQ, _JGE, _JSET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NR_AT, _ARCH_AT, _ARGS_AT = 0, 4, 16
_X32 = 0x40000000

_READ = 4 | 8
_WRITE = 2 | 16 | 32 | 128 | 256 | 1024 | 4096
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_FILE_ONLY = 1 | 2 | 4 | _TRUNCATE
_ALL_OF_FIRST = (1 << 13) - 1
READABLE = (
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/etc/localtime",
    "/dev/urandom", "/dev/random", "/dev/zero",
)  # fmt: skip
READABLE_ONLINE = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/ssl",
                   "/usr/share/ca-certificates", "/etc/pki", "/etc/gai.conf")  # fmt: skip
WRITABLE_DEVICES = ("/dev/null",)


class CannotConfine(Exception):
    """The kernel does not let this process be confined; the text says what is missing."""


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the server dies.

    Raises:
        CannotConfine: If the server is already gone.
    """
    _libc.prctl(PR_SET_PDEATHSIG, 9, 0, 0, 0)
    if os.getppid() != parent:
        raise CannotConfine("the server that started it is gone")


def limit_resources(
    *, cpu_s: int, memory_mib: int, file_mib: int, open_files: int
) -> None:  # fmt: skip
    """Set the limits that the kernel counts for one process."""
    mib = 1 << 20
    for kind, soft, hard in (
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_CPU, cpu_s, cpu_s + 1),
        (resource.RLIMIT_AS, memory_mib * mib, memory_mib * mib),
        (resource.RLIMIT_FSIZE, file_mib * mib, file_mib * mib),
        (resource.RLIMIT_NOFILE, open_files, open_files),
    ):
        most = resource.getrlimit(kind)[1]
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(kind, (soft, hard))


def leave_root(folder: str) -> bool:
    """Become a user that owns nothing but the folder; return whether this process is not root.

    Where others may not read the interpreter's library (it lies in root's home), no other user
    could import anything: then root stays, without any capability.
    """
    if os.geteuid() != 0:
        return True
    if _others_can_read(sysconfig.get_path("stdlib")):
        for uid in (OWN_UID_BASE + os.getpid(), NOBODY):
            with contextlib.suppress(OSError):
                os.chown(folder, uid, uid)
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
                return True
    header = struct.pack("=Ii", 0x20080522, 0)
    _libc.capset(header, bytes(24))
    return False


def confine(folder: str, *, network: bool) -> dict[str, str]:
    """Take processes, sockets and the file system away; return what the kernel enforces.

    Raises:
        CannotConfine: If it can do none of it here.
    """
    if _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise CannotConfine("the kernel knows no no_new_privs")
    is_walled = _wall_files(folder, network=network)
    _filter_calls(network=network)
    return {
        "processes": ENFORCED,
        "network": "granted" if network else ENFORCED,
        "files": ENFORCED if is_walled else COOPERATIVE,
    }


def _others_can_read(path: str) -> bool:
    while True:
        try:
            mode = os.stat(path).st_mode  # noqa: PTH116 - pathlib would double the start-up
        except OSError:
            return False
        if not mode & 0o001:
            return False
        if path == "/":
            return True
        path = os.path.dirname(path)  # noqa: PTH120 - as above


def _wall_files(folder: str, *, network: bool) -> bool:
    """Let this process see the library and its folder alone; return whether Landlock is there."""
    version = _libc.syscall(444, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    if version < 1:
        return False
    handled = _ALL_OF_FIRST | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    rules = struct.pack("=QQQ", handled, 0 if network else 3, 3)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = _libc.syscall(444, rules[:size], ctypes.c_size_t(size), ctypes.c_uint32(0))
    if ruleset < 0:
        return False
    library = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    for path in (*library, *READABLE, *(READABLE_ONLINE if network else ())):
        _allow(ruleset, path, _READ)
    for path in WRITABLE_DEVICES:
        _allow(ruleset, path, 2 | 4)
    _allow(ruleset, folder, (_READ | _WRITE | _REFER | _TRUNCATE) & handled)
    is_walled = _libc.syscall(446, ruleset, ctypes.c_uint32(0)) == 0
    os.close(ruleset)
    return bool(is_walled)


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        at = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    if not os.path.isdir(path):  # noqa: PTH112 - pathlib would double the start-up
        access &= _FILE_ONLY
    _libc.syscall(445, ruleset, 1, struct.pack("=Qi", access, at), ctypes.c_uint32(0))
    os.close(at)


def _filter_calls(*, network: bool) -> None:
    """Install the filter of system calls.

    Raises:
        CannotConfine: If the machine is unknown or the kernel refuses.
    """
    machine = _MACHINES.get(os.uname().machine)
    if machine is None:
        raise CannotConfine(f"no filter of system calls is known for {os.uname().machine}")
    program = _program(*machine, network=network)
    code = b"".join(struct.pack("=HBBI", *line) for line in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("@HP", len(program), ctypes.addressof(buffer))
    if _libc.prctl(PR_SET_SECCOMP, 2, header, 0, 0) != 0:
        raise CannotConfine("the kernel accepts no filter of system calls")


def _program(column: int, arch: int, *, network: bool) -> list[tuple[int, int, int, int]]:
    """Return the filter, a chain of comparisons, as (code, jump if true, jump if false, value)."""
    me = os.getpid()
    denied = _ERRNO | errno.EPERM
    lines = [
        (_LD, 0, 0, _ARCH_AT), (_JEQ, 1, 0, arch), (_RET, 0, 0, _KILL),
        (_LD, 0, 0, _NR_AT), (_JGE, 0, 1, _X32), (_RET, 0, 0, _KILL),
    ]  # fmt: skip

    def number(name: str) -> int | None:
        return _CALLS[name][column]

    def always(name: str, answer: int) -> None:
        nr = number(name)
        if nr is not None:
            lines.extend([(_JEQ, 0, 1, nr), (_RET, 0, 0, answer)])

    def unless(name: str, at: int, tests: list[tuple[int, int, int, int]]) -> None:
        """Answer by tests of one argument; each falls through to the next, then it is allowed."""
        nr = number(name)
        if nr is not None:
            body = [(_LD, 0, 0, _ARGS_AT + 8 * at), *tests, (_RET, 0, 0, _ALLOW)]
            lines.extend([(_JEQ, 0, len(body), nr), *body])

    if not network:
        always("socket", _ERRNO | errno.ENETDOWN)
    always("clone3", _ERRNO | errno.ENOSYS)  # the C library then uses clone
    unless("clone", 0, [(_JSET, 1, 0, CLONE_THREAD), (_RET, 0, 0, denied)])
    for name in ("kill", "tgkill"):
        unless(name, 0, [(_JEQ, 1, 0, me), (_RET, 0, 0, denied)])
    unless("prlimit64", 0, [(_JEQ, 2, 0, 0), (_JEQ, 1, 0, me), (_RET, 0, 0, denied)])
    for name, (at, values) in _WITH_ARGUMENT.items():
        tests = [line for each in values for line in ((_JEQ, 0, 1, each), (_RET, 0, 0, denied))]
        unless(name, at, tests)
    for name in _ALWAYS:
        always(name, denied)
    lines.append((_RET, 0, 0, _ALLOW))
    return lines
