"""Put the hub together: sign-in, learners' servers, services, roles, and where things are kept."""

from __future__ import annotations

import asyncio
import grp
import logging
import os
import pwd
import sys
from logging.handlers import RotatingFileHandler
from typing import Any, ClassVar

from jupyterhub.app import JupyterHub
from jupyterhub.auth import PAMAuthenticator
from tornado import web

from hookscope_course.places import SETTINGS
from hub import ending, guesses
from hub.settings import CONFIG, KEEP_ALIVE, PROXY, HubError, Settings
from hub.sockets import at, bound, peer
from hub.spawner import LearnersSpawner

_LARGEST = 1 << 20  # bytes that the hub itself takes in one request: it has forms, and no uploads
_WAITING = 5  # sign-ins of one name from one address at the same time; each takes its turn
_SEES = ("admin-ui", "list:users", "read:users", "read:servers", "servers", "delete:servers", "list:services")


class LearnersAuthenticator(PAMAuthenticator):  # type: ignore[misc]  # it has no types
    """Lets users of our group in, with the system's own passphrases, and only as long as they are in it."""

    _turns: ClassVar[dict[tuple[str, str], tuple[asyncio.Lock, list[int]]]] = {}

    def check_allowed(self, username: str, authentication: Any = None) -> bool:
        """Whether somebody who knows the passphrase is a learner."""
        try:
            return pwd.getpwnam(username).pw_uid != 0 and self._is_ours(username)
        except KeyError:
            return False

    async def refresh_user(self, user: Any, handler: Any = None, **more: Any) -> bool:
        """Whether somebody who signed in is a learner still."""
        return self._is_ours(user.name)

    async def authenticate(self, handler: Any, data: dict[str, str]) -> Any:
        """Check a passphrase: one after the other for each name and address, so that nobody keeps others waiting."""
        if peer(handler.request.connection.stream.socket):  # not the proxy, so the address may be invented
            raise web.HTTPError(403, "Sign in at the hub's page.")
        key = data["username"], handler.request.remote_ip
        lock, waiting = self._turns.setdefault(key, (asyncio.Lock(), [0]))
        if waiting[0] >= _WAITING:
            raise web.HTTPError(429, "Too many sign-ins of this name at once. Wait a minute, and try again.")
        waiting[0] += 1
        try:
            async with lock:
                return await super().authenticate(handler, data)
        finally:
            waiting[0] -= 1
            if not waiting[0]:
                self._turns.pop(key, None)

    def _is_ours(self, name: str) -> bool:
        return any(name in grp.getgrnam(group).gr_mem for group in self.allowed_groups)


class Classroom(JupyterHub):  # type: ignore[misc]  # it has no types
    """JupyterHub, which takes no large requests."""

    name = "jupyterhub"

    def init_logging(self) -> None:
        """Write what is said into a file, too: what was refused is of interest later."""
        self.extra_log_handlers = [_log(Settings.of(os.environ))]
        super().init_logging()

    def init_proxy(self) -> None:
        """Lead to the guesses, too, at a Unix socket, which the setting for further routes does not take."""
        super().init_proxy()
        settings = Settings.of(os.environ)
        if settings.guesses:
            self.proxy.extra_routes[guesses.PREFIX] = at(settings.guesses_socket)

    async def start(self) -> None:
        """Start, and then bound what is read of a request, before anybody has signed in."""
        await super().start()
        self.http_server.conn_params.max_body_size = _LARGEST
        bound(self.http_server)


def configure(c: Any, settings: Settings) -> None:
    """Write the settings into JupyterHub's configuration.

    Args:
        c: as `get_config()` gives it.
        settings: of this hub.

    Raises:
        HubError: the teacher is none of ours.

    """
    hub, spawner, python = c.JupyterHub, c.LearnersSpawner, sys.executable
    hub.ip, hub.port = settings.host, settings.port
    hub.ssl_key, hub.ssl_cert = settings.tls_key, settings.tls_cert
    # Unix sockets in root's folders, not ports: while the hub is down, a learner could listen at its port.
    hub.hub_bind_url = hub.hub_connect_url = at(settings.hub_socket)
    hub.hub_socket_mode = 0o666  # who asks shows a token
    hub.cookie_secret_file = str(settings.cookies)
    hub.db_url = f"sqlite:///{settings.database}"
    hub.pid_file = str(settings.pid)
    # Learners' servers survive a restart of the hub, so running cells go on. The proxy does not survive it: without the
    # hub, nobody would remove the route to a server that died.
    hub.cleanup_servers, hub.cleanup_proxy = False, True
    ends_with_hub = [python, "-I", "-S", ending.__file__, "--"]
    c.ConfigurableHTTPProxy.command = [*ends_with_hub, "/usr/bin/env", "node", "--require", str(KEEP_ALIVE), str(PROXY)]
    c.ConfigurableHTTPProxy.api_url = at(settings.proxy_socket)
    c.ConfigurableHTTPProxy.pid_file = str(settings.proxy_pid)
    c.ConfigurableHTTPProxy.check_running_interval = 2

    hub.authenticator_class = LearnersAuthenticator
    c.LearnersAuthenticator.auth_refresh_age, c.LearnersAuthenticator.refresh_pre_spawn = 30, True
    c.LearnersAuthenticator.allowed_groups = {settings.group}
    c.LearnersAuthenticator.delete_invalid_users = True  # who was removed leaves nothing to a namesake
    c.LearnersAuthenticator.executor_threads = 64  # a wrong passphrase takes seconds, in which others shall sign in

    hub.spawner_class = LearnersSpawner
    spawner.run, spawner.memory, spawner.cpus = str(settings.run), settings.memory, settings.cpus
    spawner.processes = settings.processes
    spawner.cmd = [python, "-P", "-m", "jupyterhub.singleuser"]
    spawner.idle, spawner.poll_interval = settings.idle * 60, 5
    spawner.env_keep = ["LANG", "LC_ALL"]
    spawner.environment = {
        "PATH": os.pathsep.join([os.path.dirname(python), "/usr/local/bin", "/usr/bin", "/bin"]),  # noqa: PTH120
        "JUPYTER_CONFIG_PATH": str(SETTINGS),  # the course's own, as `make lab` has it
        "OMP_NUM_THREADS": "1",
    }
    # At the bell all come at once; nobody is turned away, and one whose server does not start stops nothing.
    hub.concurrent_spawn_limit = hub.active_server_limit = spawner.consecutive_failure_limit = 0
    spawner.http_timeout, spawner.start_timeout = 180, 600

    hub.services = [{"name": "accounts", "api_token": settings.accounts_token.read_text()}]
    hub.load_roles = [{"name": "accounts", "scopes": ["admin:users", "delete:servers"], "services": ["accounts"]}]
    if settings.teacher:
        if settings.teacher not in settings.learners:
            raise HubError(f"TEACHER={settings.teacher} has no account yet: python -m hub add {settings.teacher}")
        scopes = [*_SEES, *(["access:servers"] if settings.teacher_enters else [])]
        hub.load_roles.append({"name": "teacher", "scopes": scopes, "users": [settings.teacher]})
        hub.template_paths = [str(CONFIG.with_name("templates"))]
        hub.template_vars = {"teacher_enters": settings.teacher_enters}
    if settings.guesses:
        if not settings.teacher:
            raise HubError("GUESSES=on counts guesses for a teacher. Say who that is, for example TEACHER=maria.")
        command = [*ends_with_hub, python, "-m", "hub.guesses", str(settings.guesses_socket), at(settings.hub_socket)]
        guesses.add_to(c, spawner, teacher=settings.teacher, socket=settings.guesses_socket, command=command)


def _log(settings: Settings) -> logging.Handler:
    handler = RotatingFileHandler(settings.log, maxBytes=10 << 20, backupCount=3)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    return handler
