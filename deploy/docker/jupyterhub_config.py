"""JupyterHub with a Docker container for each learner. README.md beside this file says how to start it."""

import os
from ipaddress import ip_network
from typing import Any

from docker.errors import NotFound
from docker.types import IPAMConfig, IPAMPool

c = get_config()  # type: ignore[name-defined]  # noqa: F821  # JupyterHub provides it
memory, subnets = os.environ["MEMORY"], [*ip_network(os.environ["SUBNETS"]).subnets(new_prefix=28)]

# The proxy forwards smuggled requests (README.md), so nginx stands in front, and nobody else can reach the proxy.
c.JupyterHub.bind_url = "http://127.0.0.1:8000"
c.JupyterHub.hub_bind_url = "http://0.0.0.0:8081"  # the learners' servers ask here who may come in
c.JupyterHub.hub_connect_url = "http://hub:8081"
c.JupyterHub.subdomain_host = os.environ["SUBDOMAIN_HOST"]  # a domain for each learner, where they are strangers

# Learners sign up with a name and a password, and the teacher lets them in at /hub/authorize.
c.JupyterHub.authenticator_class = "native"
c.Authenticator.admin_users = {os.environ["TEACHER"]}
c.Authenticator.allow_all = True  # that is, all whom the teacher has let in
c.NativeAuthenticator.minimum_password_length = 10

c.JupyterHub.spawner_class = "docker"
c.DockerSpawner.image, c.DockerSpawner.pull_policy = "hookscope:1", "never"
c.DockerSpawner.remove = True  # work is in the volume, so a stopped container has nothing to keep
c.DockerSpawner.volumes = {"learner-{username}": "/home/jovyan"}
c.DockerSpawner.default_url = "/lab/tree/course/index.ipynb"
c.DockerSpawner.use_internal_ip = True
c.DockerSpawner.mem_limit, c.DockerSpawner.cpu_limit = memory, 1
c.DockerSpawner.extra_host_config = {
    "memswap_limit": memory,  # no swap on top of it
    "pids_limit": 512,
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges"],
    "read_only": True,  # all but the home directory, /tmp and /dev/shm
    "tmpfs": {"/tmp": "rw,exec,nosuid,nodev,size=512m,mode=1777"},
    "shm_size": "256m",
}


async def give_network(spawner: Any) -> None:
    """Connect a learner's container with the hub and nothing else: no other learner, no host, no internet."""
    name = spawner.network_name = f"learner-{spawner.user.id}"
    pool = IPAMPool(subnet=str(subnets[spawner.user.id]))
    options = {"com.docker.network.bridge.gateway_mode_ipv4": "isolated"}  # without an address of the host
    try:
        inside = (await spawner.docker("inspect_network", name))["Containers"].values()
    except NotFound:
        ipam, inside = IPAMConfig(pool_configs=[pool]), []
        await spawner.docker("create_network", name, internal=True, options=options, ipam=ipam)
    if "hub" not in [each["Name"] for each in inside]:
        await spawner.docker("connect_container_to_network", "hub", name)


c.Spawner.pre_spawn_hook = give_network
c.JupyterHub.services = [{"name": "culler", "command": ["jupyterhub-idle-culler", "--timeout=7200"]}]
scopes = ["list:users", "read:users:activity", "read:servers", "delete:servers"]
c.JupyterHub.load_roles = [{"name": "culler", "services": ["culler"], "scopes": scopes}]
