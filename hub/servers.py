"""The process that learners' JupyterLab servers are forked from: it has imported what they need, and runs none of it.

    python -m hub.servers SOCKET

A server of its own takes four seconds of a processor to import, and holds a hundred megabytes that no other one shares;
a fork has all that at once. It stands beside the process that kernels are forked from, and works as that one does.
"""

from __future__ import annotations

import sys

from hookscope_course.kernels.server import KernelServer, Request, take_place

__all__ = ["LOADED", "become_server"]

LOADED = (
    "jupyterhub.singleuser", "jupyterhub.singleuser.extension", "jupyter_server.serverapp", "jupyterlab.labapp",
    "jupyterlab.extensions.pypi", "jupyterlab.handlers.announcements", "jupyterlab_server.handlers", "notebook_shim",
    "jupyter_server.services.contents.largefilemanager", "jupyter_server.services.kernels.kernelmanager",
    "jupyter_server.services.sessions.handlers", "jupyter_server.services.kernels.websocket",
    "jupyter_server.services.kernels.connection.channels", "jupyter_server.services.api.handlers",
    "jupyter_server.services.contents.handlers", "jupyter_server.services.events.handlers",
    "jupyter_server.services.security.handlers", "jupyter_server.services.shutdown",
    "jupyter_server.services.config.handlers", "jupyter_server.services.kernelspecs.handlers",
    "jupyter_server.services.nbconvert.handlers", "jupyter_server.nbconvert.handlers", "jupyter_server.files.handlers",
    "jupyter_server.view.handlers", "jupyter_server.kernelspecs.handlers", "jupyter_server.gateway.managers",
    "jupyter_client.provisioning.local_provisioner", "nbconvert.exporters", "nbformat.v4", "jsonschema.validators",
    "hookscope_course.kernels.activity", "tornado.netutil", "tornado.simple_httpclient", "sqlite3", "zmq.asyncio",
)  # fmt: skip


def become_server(request: Request) -> None:
    """Go on, in a fork, as a learner's server."""
    take_place(request)
    from jupyterhub.singleuser import main
    from jupyterlab.commands import get_user_settings_dir, get_workspaces_dir

    # JupyterLab looked for these folders when it was imported, in a home that is not the learner's.
    folders = [
        f"--LabApp.user_settings_dir={get_user_settings_dir()}",
        f"--LabApp.workspaces_dir={get_workspaces_dir()}",
    ]
    sys.argv[:] = ["jupyterhub-singleuser", *request.arguments, *folders]
    main()


def serve() -> None:
    """Serve until this process is asked to stop; a fork of it goes on as a learner's server."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m hub.servers SOCKET")
    # `-m` puts the folder it was called in first, and no fork shall import from there.
    sys.path[:] = sys.path[1:]
    request: Request | None = KernelServer(sys.argv[1], LOADED).run()
    if request is not None:
        become_server(request)


if __name__ == "__main__":
    serve()
