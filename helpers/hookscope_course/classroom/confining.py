"""Shut a process in: no network, no sockets of others, only files that it needs, and limits. Linux only."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

if sys.platform == "win32":
    raise ImportError("only Linux can sandbox a process. On Windows, use WSL")

import fcntl
import resource

__all__ = ["ConfinementError", "Limits", "confine"]

_NEW_USER, _NEW_NET, _NEW_MOUNTS, _NEW_IPC = 0x10000000, 0x40000000, 0x00020000, 0x08000000
_NO_SUID, _NO_DEVICES, _ALL_BELOW, _PRIVATE = 0x2, 0x4, 0x4000, 0x40000
_NO_NEW_PRIVILEGES = 38
# Of Landlock (linux/landlock.h). The numbers of the calls are the same on all machines.
_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
_EXECUTE, _READ_FILE, _READ_FOLDER = 1 << 0, 1 << 2, 1 << 3
_ALL_OF_A_FILE = (1 << 0) | (1 << 1) | (1 << 2) | (1 << 14) | (1 << 15)
_BITS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # how many rights a version knows; the last holds for all later ones
_SIGNALS_STAY_INSIDE = 1 << 1
# Of seccomp (linux/seccomp.h, linux/audit.h): of a machine, its number and those of socket and socketpair.
_MACHINES = {"x86_64": (0xC000003E, 41, 53), "aarch64": (0xC00000B7, 198, 199)}
_FILTER, _SET_FILTER, _IO_URING, _X32 = 2, 22, 425, 1 << 30
_MACHINE, _CALL, _FIRST, _SECOND = 4, 0, 16, 24  # where in what a filter sees
_LOAD, _MASK, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EACCES


class ConfinementError(OSError):
    """The system does not allow a process to be shut in; the message says what it refused."""


@dataclass(frozen=True)
class Limits:
    """What a process may use up.

    Attributes:
        cpu_seconds: of computing, in each of its processes.
        memory: bytes of data, in each of its processes.
        file: bytes in one file.
        folder: bytes in each private folder.
        processes: of its user, threads counted; root is not held to it.

    """

    cpu_seconds: int = 60
    memory: int = 3 << 30
    file: int = 64 << 20
    folder: int = 256 << 20
    processes: int = 256


def confine(
    readable: Iterable[Path],
    writable: Iterable[Path],
    limits: Limits,
    listable: Iterable[Path] = (),
    private: Iterable[Path] = (),
) -> None:
    """Shut this process in, and all that it starts, for good.

    There is no network but a loopback of its own. Of files it can open only what is named here. It cannot send a signal
    to, look into, share memory with, or connect to a process that is outside. It must have one thread.

    Args:
        readable: files and folders it may read and run; those that are not there are passed over.
        writable: folders in which it may do what it likes.
        limits: what it may use up.
        listable: folders in which it may see what files are called, at any depth, and not what is in them.
        private: folders that are empty for it, in memory; what it writes there nobody else sees, and it goes with it.

    Raises:
        ConfinementError: the system does not allow one of these; nothing is promised then.

    """
    if not sys.platform.startswith("linux"):
        raise ConfinementError("only Linux can sandbox a process")
    for what, most in (
        (resource.RLIMIT_CPU, limits.cpu_seconds),
        (resource.RLIMIT_DATA, limits.memory),
        (resource.RLIMIT_FSIZE, limits.file),
        (resource.RLIMIT_NPROC, limits.processes),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))
    _leave_the_network()
    for folder in private:
        _make_private(folder, limits.folder)
    _close_the_files(readable, writable, listable)
    _close_the_sockets()


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _refused(what: str) -> ConfinementError:
    return ConfinementError(f"the system refuses {what}: {os.strerror(ctypes.get_errno())}")


def _leave_the_network() -> None:
    """Go into a network of our own, in which there is only a loopback: processes of one exercise may talk."""
    user, group = os.getuid(), os.getgid()
    if _libc().unshare(_NEW_USER | _NEW_NET | _NEW_MOUNTS | _NEW_IPC):
        raise _refused("namespaces for network, folders and memory (unshare)")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with suppress(OSError):  # without a map we are nobody, and that will do
            Path(f"/proc/self/{name}").write_text(text, encoding="ascii")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        up = struct.pack("16sh14x", b"lo", 1)  # IFF_UP
        fcntl.ioctl(end, 0x8914, up)  # SIOCSIFFLAGS


def _make_private(folder: Path, size: int) -> None:
    """Put an empty folder in memory over one that others use."""
    mount = _libc().mount
    if mount(None, b"/", None, _ALL_BELOW | _PRIVATE, None):
        raise _refused("private folders (mount)")
    options = f"size={size},mode=0700".encode()
    if mount(b"tmpfs", os.fsencode(folder), b"tmpfs", ctypes.c_ulong(_NO_SUID | _NO_DEVICES), options):
        raise _refused(f"a private {folder} (mount)")


def _close_the_files(readable: Iterable[Path], writable: Iterable[Path], listable: Iterable[Path]) -> None:
    libc = _libc()
    version = libc.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    if version < 1:
        raise _refused("to block files for a process (Landlock)")
    rights = (1 << _BITS.get(version, 16)) - 1
    settings = struct.pack("QQQ", rights, 0, _SIGNALS_STAY_INSIDE)[: 8 if version < 4 else 16 if version < 6 else 24]
    rules = libc.syscall(_CREATE, settings, ctypes.c_size_t(len(settings)), ctypes.c_uint32(0))
    if rules < 0:
        raise _refused("rules about files (Landlock)")
    look = _EXECUTE | _READ_FILE | _READ_FOLDER
    for paths, allowed in ((readable, look), (writable, rights), (listable, _READ_FOLDER)):
        for path in paths:
            try:
                opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                mask = allowed if path.is_dir() else allowed & _ALL_OF_A_FILE
                rule = struct.pack("=Qi", mask & rights, opened)
                if libc.syscall(_ADD_RULE, rules, ctypes.c_int(1), rule, ctypes.c_uint32(0)):
                    raise _refused(f"a rule about {path} (Landlock)")
            finally:
                os.close(opened)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.syscall(_RESTRICT, rules, ctypes.c_uint32(0)):
        raise _refused("to block files for this process (Landlock)")
    os.close(rules)


def _close_the_sockets() -> None:
    """Refuse sockets that lead out of our network: only those of the internet, and pairs that cannot connect again.

    Neither the network's namespace nor Landlock closes a Unix socket that has a path.
    """
    if platform.machine() not in _MACHINES:
        raise ConfinementError(f"sockets can be blocked only on {' and '.join(_MACHINES)}, not on {platform.machine()}")
    machine, one, pair = _MACHINES[platform.machine()]
    families, kinds = (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK), (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)
    steps: list[tuple[int, int, int, int]] = [  # what, how many steps to leave out if it is so and if not, with what
        (_LOAD, 0, 0, _MACHINE), (_EQUAL, 1, 0, machine), (_RETURN, 0, 0, _REFUSE),
        (_LOAD, 0, 0, _CALL), (_AT_LEAST, 1, 0, _X32), (_EQUAL, 0, 1, _IO_URING), (_RETURN, 0, 0, _REFUSE),
        (_EQUAL, 2, 0, one), (_EQUAL, 6, 0, pair), (_RETURN, 0, 0, _ALLOW),
        (_LOAD, 0, 0, _FIRST), *((_EQUAL, 8 - place, 0, family) for place, family in enumerate(families)),
        (_RETURN, 0, 0, _REFUSE),
        (_LOAD, 0, 0, _SECOND), (_MASK, 0, 0, 0xF), *((_EQUAL, 2 - place, 0, kind) for place, kind in enumerate(kinds)),
        (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW),
    ]  # fmt: skip
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    head = struct.pack("HP", len(steps), ctypes.addressof(program))
    if _libc().prctl(_SET_FILTER, _FILTER, head, 0, 0):
        raise _refused("to block sockets (seccomp)")
