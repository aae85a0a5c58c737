"""What cannot be is refused with the way out, before anything is started."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest

from hub.running import taken
from hub.settings import HubError, Settings
from tests.shared import ROOT


def test_without_a_word_it_listens_to_nobody_else() -> None:
    assert Settings.of({}).host == "127.0.0.1"
    assert Settings.of({"HOST": "", "PORT": " "}) == Settings()


@pytest.mark.parametrize(("text", "amount"), [("1G", 1 << 30), ("1.5GiB", 3 << 29), ("300 mb", 300 << 20)])
def test_memory_is_read_as_people_write_it(text: str, amount: int) -> None:
    assert Settings.of({"MEMORY": text}).memory == amount


REFUSED = {
    "MEMORY": ("much", "Write it like MEMORY=1G"),
    "PORT": ("66000", "must be between 1 and 65535"),
    "CPUS": ("two", "CPUS=two is not a number"),
    "IDLE": ("0", "must be between"),
    "HOST": ("my machine", "Use one of this machine's"),
    "TLS_KEY": ("key.pem", "Set both TLS_KEY"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_nonsense_is_refused_by_name(name: str) -> None:
    text, said = REFUSED[name]
    with pytest.raises(HubError, match=re.escape(said)):
        Settings.of({name: text})


def test_too_little_memory_is_refused() -> None:
    with pytest.raises(HubError, match="too little"):
        Settings.of({"MEMORY": "64M"})


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.20", "::"])
def test_a_network_without_encryption_is_refused_unless_said(host: str, tmp_path: Path) -> None:
    with pytest.raises(HubError, match="anyone on the network could read the passphrases"):
        Settings.of({"HOST": host})
    with pytest.raises(HubError, match="anyone on the network could read the passphrases"):
        Settings.of({"HOST": host, "WITHOUT_TLS": "no"})
    assert Settings.of({"HOST": host, "WITHOUT_TLS": "yes"}).host == host
    with pytest.raises(HubError, match="TLS_KEY: there is no file"):
        Settings.of({"HOST": host, "TLS_KEY": "/nowhere/key", "TLS_CERT": "/nowhere/cert"})
    file = tmp_path / "pem"
    file.touch()
    assert Settings.of({"HOST": host, "TLS_KEY": str(file), "TLS_CERT": str(file)}).tls_key == str(file)


def test_sockets_have_paths_that_are_short_enough() -> None:
    kernel = "kernel-157fc836-1bcf-46b1-a38b-b907f93fb382-ipc-5"
    for name in (kernel, "server.sock"):
        assert len(str(Settings().run / ("n" * 31) / name)) < 108


def test_the_page_names_every_setting() -> None:
    page = (ROOT / "hub" / "README.md").read_text(encoding="utf-8")
    source = (ROOT / "hub" / "settings.py").read_text(encoding="utf-8")
    names = {*re.findall(r'given(?:\.get\(|, )"([A-Z_]+)"', source)}
    assert len(names) == 15
    assert not [name for name in names if f"`{name}" not in page]


def test_who_listens_at_a_port_is_named() -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        assert taken("127.0.0.1", port) == ""
        other.listen()
        for host in ("127.0.0.1", "0.0.0.0"):
            assert f"(process {os.getpid()} of user " in taken(host, port)


def test_without_a_word_the_port_is_one_that_only_root_may_take(tmp_path: Path) -> None:
    file = tmp_path / "pem"
    file.touch()
    assert Settings.of({}).port == 80
    assert Settings.of({"TLS_KEY": str(file), "TLS_CERT": str(file)}).port == 443
    assert Settings.of({"TLS_KEY": str(file), "TLS_CERT": str(file), "PORT": "8000"}).port == 8000
