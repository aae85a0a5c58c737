"""Put the hub together: sign-in, learners' servers, services, roles, and where things are kept."""

from __future__ import annotations

import grp
import logging
import os
import pwd
import sys
from logging.handlers import RotatingFileHandler
from typing import Any

from jupyterhub.app import JupyterHub
from jupyterhub.auth import PAMAuthenticator

from hookscope_course.kernels import launch
from hub import guesses
from hub.settings import PROXY, ROOT, HubError, Settings
from hub.spawner import SERVER, LearnersSpawner

_LARGEST = 1 << 20  # bytes that the hub itself takes in one request: it has forms, and no uploads
_SEES = ("admin-ui", "list:users", "read:users", "read:servers", "servers", "delete:servers", "list:services")


class LearnersAuthenticator(PAMAuthenticator):  # type: ignore[misc]  # it has no types
    """Lets users of our group in, with the system's own passphrases, and only as long as they are in it."""

    def check_allowed(self, username: str, authentication: Any = None) -> bool:
        """Whether somebody who knows the passphrase is a learner."""
        try:
            return pwd.getpwnam(username).pw_uid != 0 and self._is_ours(username)
        except KeyError:
            return False

    async def refresh_user(self, user: Any, handler: Any = None, **more: Any) -> bool:
        """Whether somebody who signed in is a learner still."""
        return self._is_ours(user.name)

    def _is_ours(self, name: str) -> bool:
        return any(name in grp.getgrnam(group).gr_mem for group in self.allowed_groups)


class Classroom(JupyterHub):  # type: ignore[misc]  # it has no types
    """JupyterHub, which takes no large requests."""

    name = "jupyterhub"

    def init_logging(self) -> None:
        """Write what is said into a file, too: what was refused is of interest later."""
        self.extra_log_handlers = [_log(Settings.of(os.environ))]
        super().init_logging()

    async def start(self) -> None:
        """Start, and then bound what is read of a request, before anybody has signed in."""
        await super().start()
        self.http_server.conn_params.max_body_size = _LARGEST


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
    hub.hub_ip, hub.hub_port = "127.0.0.1", settings.port + 2
    hub.cookie_secret_file = str(settings.cookies)
    hub.db_url = f"sqlite:///{settings.database}"
    hub.pid_file = str(settings.pid)
    # A hub that is stopped and started again, or killed, finds proxy and servers, and no cell notices.
    hub.cleanup_servers = hub.cleanup_proxy = False
    c.ConfigurableHTTPProxy.command = [str(PROXY)]
    c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{settings.port + 1}"
    c.ConfigurableHTTPProxy.pid_file = str(settings.proxy_pid)
    c.ConfigurableHTTPProxy.check_running_interval = 2

    hub.authenticator_class = LearnersAuthenticator
    c.LearnersAuthenticator.auth_refresh_age, c.LearnersAuthenticator.refresh_pre_spawn = 30, True
    c.LearnersAuthenticator.allowed_groups = {settings.group}
    c.LearnersAuthenticator.delete_invalid_users = True  # who was removed leaves nothing to a namesake
    c.LearnersAuthenticator.executor_threads = 16  # a wrong passphrase takes seconds, in which others shall sign in

    hub.spawner_class = LearnersSpawner
    spawner.run, spawner.memory, spawner.cpus = str(settings.run), settings.memory, settings.cpus
    spawner.processes = settings.processes
    spawner.cmd = [python, "-I", "-S", launch.__file__, str(settings.servers), "--or", "jupyterhub.singleuser"]
    spawner.args = SERVER
    spawner.env_keep = ["LANG", "LC_ALL"]
    spawner.environment = {
        "PATH": os.pathsep.join([os.path.dirname(python), "/usr/local/bin", "/usr/bin", "/bin"]),  # noqa: PTH120
        "JUPYTER_PATH": str(settings.run / "share"),
        "OMP_NUM_THREADS": "1",
    }
    # At the bell all come at once; nobody is turned away, and one whose server does not start stops nothing.
    hub.concurrent_spawn_limit = hub.active_server_limit = spawner.consecutive_failure_limit = 0
    spawner.http_timeout, spawner.start_timeout = 180, 600

    idle = settings.idle * 60
    # Often enough that nobody at work looks idle in between.
    look = max(10, min(300, idle // 4))
    hub.last_activity_interval = look
    spawner.environment["JUPYTERHUB_ACTIVITY_INTERVAL"] = str(look)
    end_with_hub = [python, "-m", "hub.kernels"]
    cull = [python, "-m", "jupyterhub_idle_culler", f"--timeout={idle}", f"--cull-every={look}"]
    hub.services = [
        {"name": "kernels", "command": [*end_with_hub, str(settings.kernels)], "cwd": str(ROOT)},
        {"name": "servers", "command": [*end_with_hub, str(settings.servers), "hub.servers"], "cwd": str(ROOT)},
        {"name": "idle", "command": [*end_with_hub, "--", *cull], "cwd": str(ROOT)},
    ]
    culls = ["list:users", "read:users:activity", "read:servers", "delete:servers"]
    hub.load_roles = [{"name": "idle", "scopes": culls, "services": ["idle"]}]
    if settings.teacher:
        if settings.teacher not in grp.getgrnam(settings.group).gr_mem:
            raise HubError(f"TEACHER={settings.teacher} has no account here: python -m hub add {settings.teacher}")
        scopes = [*_SEES, *(["access:servers"] if settings.teacher_enters else [])]
        hub.load_roles.append({"name": "teacher", "scopes": scopes, "users": [settings.teacher]})
    if settings.guesses:
        if not settings.teacher:
            raise HubError("GUESSES=on counts guesses for a teacher: say who that is, as in TEACHER=maria.")
        command = [*end_with_hub, "--", python, "-m", "hub.guesses"]
        guesses.add_to(hub, spawner, teacher=settings.teacher, port=settings.port + 3, command=command)


def _log(settings: Settings) -> logging.Handler:
    handler = RotatingFileHandler(settings.log, maxBytes=10 << 20, backupCount=3)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    return handler
