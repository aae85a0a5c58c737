"""What a teacher can choose, in the environment: address, encryption, limits, who the teacher is."""

from __future__ import annotations

import grp
import hashlib
import ipaddress
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONFIG = Path(__file__).with_name("jupyterhub_config.py")
PROXY = ROOT / "build" / "proxy" / "node_modules" / ".bin" / "configurable-http-proxy"
KEEP_ALIVE = ROOT / "hub" / "proxy" / "keep_alive.cjs"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_YES = ("1", "yes", "true", "on")


class HubError(Exception):
    """The hub cannot do what was asked; the message says why, and the way out."""


class _In:
    """The path of a file in one of the hub's folders."""

    def __init__(self, folder: str, name: str) -> None:
        self.folder, self.name = folder, name

    def __get__(self, settings: Settings | None, of: type[Settings]) -> Path:
        where: Path = getattr(settings, self.folder)
        return where / self.name


@dataclass(frozen=True)
class Settings:
    """What holds for one hub.

    Attributes:
        host: the address to listen at.
        port: of the pages; inside of the machine, all that belongs to the hub speaks through Unix sockets.
        tls_key: file with the private key; empty: no encryption.
        tls_cert: file with the certificate.
        state: the folder with what the hub remembers, for root alone.
        homes: the folder with the learners' homes.
        group: of the machine's users who may sign in.
        teacher: who sees the page of all learners and can start and stop their servers; may be nobody.
        guesses: whether learners' guesses are counted for the teacher, if they agree.
        teacher_enters: whether the teacher may also open learners' servers.
        memory: for each learner, in bytes.
        cpus: for each learner, as in 1.5.
        processes: and threads, for each learner.
        idle: minutes without a sign of life after which a learner's server is stopped.

    """

    host: str = "127.0.0.1"
    port: int = 80
    tls_key: str = ""
    tls_cert: str = ""
    state: Path = ROOT / "build" / "hub"
    homes: Path = Path("/home")
    group: str = "hookscope"
    teacher: str = ""
    teacher_enters: bool = False
    guesses: bool = False
    memory: int = 1 << 30
    cpus: float = 1.0
    processes: int = 512
    idle: int = 120

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Settings:
        """Read the settings from the environment; what is empty there is as if it were not.

        Raises:
            HubError: one of them cannot be, or they do not go together.

        Example:
            >>> Settings.of({"PORT": "9000", "MEMORY": "512M"}).memory
            536870912

        """
        given = {name: value.strip() for name, value in environment.items() if value.strip()}
        usual = cls()
        settings = cls(
            host=_address(given.get("HOST", usual.host)),
            port=int(_number(given, "PORT", 443 if given.get("TLS_KEY") else usual.port, 1, 65535)),
            tls_key=given.get("TLS_KEY", ""),
            tls_cert=given.get("TLS_CERT", ""),
            state=Path(given.get("HUB_STATE", usual.state)).absolute(),
            homes=Path(given.get("HUB_HOMES", usual.homes)).absolute(),
            group=given.get("HUB_GROUP", usual.group),
            teacher=given.get("TEACHER", ""),
            teacher_enters=given.get("TEACHER_ENTERS", "").lower() in _YES,
            guesses=given.get("GUESSES", "").lower() in _YES,
            memory=_bytes(given.get("MEMORY", "1G")),
            cpus=_number(given, "CPUS", usual.cpus, 0.05, 1024),
            processes=int(_number(given, "PROCESSES", usual.processes, 64, 100_000)),
            idle=int(_number(given, "IDLE", usual.idle, 1, 10_000)),
        )
        settings.check_encryption(given.get("WITHOUT_TLS", "").lower() in _YES)
        return settings

    def check_encryption(self, without: bool) -> None:
        """Refuse to send passphrases through a network that can read them, unless that was said explicitly."""
        if bool(self.tls_key) != bool(self.tls_cert):
            raise HubError("Set both TLS_KEY (the private key) and TLS_CERT (the certificate), or neither.")
        for name, file in (("TLS_KEY", self.tls_key), ("TLS_CERT", self.tls_cert)):
            if file and not Path(file).is_file():
                raise HubError(f"{name}: there is no file {file}.")
        if not self.tls_key and not ipaddress.ip_address(self.host).is_loopback and not without:
            raise HubError(
                f"At {self.host}, anyone on the network could read the passphrases. Set TLS_KEY= and TLS_CERT= "
                "(hub/README.md explains how to get them). If a proxy or a tunnel already encrypts the traffic, set "
                "WITHOUT_TLS=yes."
            )

    # In root's folders, which learners pass through: only root can listen there.
    hub_socket = _In("run", "hub.sock")
    guesses_socket = _In("run", "guesses.sock")
    # In a folder that only root may enter.
    private = _In("run", "root")
    proxy_socket = _In("run", "root/proxy.sock")
    accounts_token = _In("state", "accounts_token")  # lets `python -m hub remove` speak with a hub that runs
    given = _In("state", "highest_uid")  # that a learner ever had: none is given twice
    cookies = _In("state", "cookie_secret")  # signs what browsers keep
    database = _In("state", "hub.sqlite")
    log = _In("state", "hub.log")
    pid = _In("state", "hub.pid")
    proxy_pid = _In("state", "proxy.pid")

    @property
    def learners(self) -> list[str]:
        """The names of the machine's users who may sign in."""
        with suppress(KeyError):
            return sorted(grp.getgrnam(self.group).gr_mem)
        return []

    @property
    def run(self) -> Path:
        """The folder for sockets, short as their paths must be; learners may pass through, and see only their own."""
        return Path("/run/hookscope") / hashlib.sha256(bytes(self.state)).hexdigest()[:8]


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address("127.0.0.1" if text == "localhost" else text))
    except ValueError:
        raise HubError(f"HOST={text} is not an address. Use one of this machine's, for example 192.168.1.20.") from None


def _number(given: Mapping[str, str], name: str, usual: float, least: float, most: float) -> float:
    text = given.get(name, str(usual))
    try:
        number = float(text)
    except ValueError:
        raise HubError(f"{name}={text} is not a number.") from None
    if not least <= number <= most:
        raise HubError(f"{name}={text} must be between {least} and {most}.")
    return number


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text, re.IGNORECASE)
    if not found:
        raise HubError(f"MEMORY={text} is not an amount of memory. Write it like MEMORY=1G or MEMORY=768M.")
    amount = int(float(found[1]) * _UNITS[found[2].upper()])
    if amount < 256 << 20:
        raise HubError(f"MEMORY={text} is too little. JupyterLab and one kernel need 256M.")
    return amount
