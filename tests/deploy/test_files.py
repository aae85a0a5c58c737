"""The files of deploy/ fit together, without an engine that runs them."""

from __future__ import annotations

import json
import re
import shlex

import pytest
import yaml

from tests.shared import ROOT

DEPLOY = ROOT / "deploy"
VALUES = yaml.safe_load((DEPLOY / "kubernetes" / "values.yaml").read_text())
LINES = re.sub(r"\\\n", "", (DEPLOY / "Containerfile").read_text()).splitlines()
STEPS = [(line.split()[0], line.partition(" ")[2]) for line in LINES if line and not line.startswith("#")]

# The keys of the schema of chart 4.4 that we use; `python -m tests.deploy.chart` reads the schema itself.
KEYS = """
cull.enabled cull.every cull.timeout hub.concurrentSpawnLimit hub.config.JupyterHub.admin_access
hub.config.JupyterHub.authenticator_class hub.db.pvc.storage ingress.annotations ingress.enabled ingress.hosts
ingress.ingressClassName ingress.tls prePuller.continuous.enabled proxy.chp.networkPolicy.allowedIngressPorts
proxy.chp.networkPolicy.interNamespaceAccessLabels proxy.service.type scheduling.podPriority.enabled
scheduling.userPlaceholder.enabled scheduling.userPlaceholder.replicas scheduling.userScheduler.enabled singleuser.cmd
singleuser.cpu.guarantee singleuser.cpu.limit singleuser.defaultUrl singleuser.image.name singleuser.image.tag
singleuser.memory.guarantee singleuser.memory.limit singleuser.networkPolicy.egressAllowRules.nonPrivateIPs
singleuser.networkPolicy.enabled singleuser.startTimeout singleuser.storage.capacity singleuser.storage.homeMountPath
"""
# JupyterHub's part of a docker run; compose.yaml and nginx.conf name the same places.
DOCKER = DEPLOY / "docker"
CONFIG = (DOCKER / "jupyterhub_config.py").read_text()
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
PAGES = sorted(path.relative_to(DEPLOY).as_posix() for path in DEPLOY.rglob("*.md"))


def leaves(values: object, name: str = "") -> list[str]:
    if not isinstance(values, dict) or name.endswith("annotations"):
        return [name]
    return [leaf for key, value in values.items() for leaf in leaves(value, f"{name}.{key}".lstrip("."))]


def test_the_values_have_only_keys_that_the_chart_knows() -> None:
    assert sorted(leaves(VALUES)) == sorted(KEYS.split())


def test_nobody_gets_in_before_a_sign_in_was_chosen_and_nothing_goes_unencrypted() -> None:
    assert VALUES["hub"]["config"]["JupyterHub"] == {"authenticator_class": "null", "admin_access": False}
    (tls,) = VALUES["ingress"]["tls"]
    assert tls["hosts"] == VALUES["ingress"]["hosts"]
    assert VALUES["proxy"]["service"]["type"] == "ClusterIP"
    assert not re.search(r"password:|secret:|dummy", (DEPLOY / "kubernetes" / "values.yaml").read_text(), re.IGNORECASE)


def test_the_hub_gets_what_its_configuration_reads() -> None:
    read = {*re.findall(r'os\.environ\["(\w+)"\]', CONFIG)}
    given = {*COMPOSE["hub"]["environment"]}
    assert read == given
    assert COMPOSE["hub"]["container_name"] == "hub"
    assert '"connect_container_to_network", "hub"' in CONFIG
    assert f"./jupyterhub_config.py:{COMPOSE['hub']['command'].split()[-1]}:ro" in COMPOSE["hub"]["volumes"]


def test_nginx_leads_to_the_proxy_and_nobody_else_reaches_it() -> None:
    (proxy,) = re.findall(r'^c\.JupyterHub\.bind_url = "(.*)"$', CONFIG, re.MULTILINE)
    assert proxy.startswith("http://127.0.0.1:")
    assert f"proxy_pass {proxy};" in (DOCKER / "nginx.conf").read_text()
    assert COMPOSE["nginx"]["network_mode"] == "service:hub"
    assert COMPOSE["hub"]["ports"] == ["80:80", "443:443"], "nginx's, and none of the proxy or the hub"


def test_all_have_the_same_jupyterhub() -> None:
    (learners,) = re.findall(r"^ARG JUPYTERHUB=(.+)$", (DEPLOY / "Containerfile").read_text(), re.MULTILINE)
    assert f"jupyterhub:{learners}\n" in COMPOSE["hub"]["build"]["dockerfile_inline"]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_on_a_screen(page: str) -> None:
    assert len((DEPLOY / page).read_text().splitlines()) <= 55
    assert len(CONFIG.splitlines()) <= 60


def test_the_container_is_built_from_the_lock_and_learners_cannot_change_the_course() -> None:
    assert ("COPY", ". .") in STEPS
    installs = [words for step, words in STEPS if step == "RUN" and "install" in words]
    assert len(installs) == 1
    assert "python set_up.py" in installs[0], "which installs requirements.lock"
    assert "-c requirements.lock" in installs[0], "JupyterHub must not change a pin"
    assert {"UV_NO_CACHE=1", "--no-cache"} <= {*installs[0].split()}, "else what was fetched stays in the layer"
    assert "uninstall" in installs[0], "the debugger listens at a port without a password"
    assert "debugpy" in installs[0]
    assert not [words for step, words in STEPS if step == "USER" and words != "1000"]
    after = STEPS[STEPS.index(("USER", "1000")) :]
    assert not any(step in ("RUN", "COPY") for step, _ in after)
    assert all(":" in words and not words.endswith(":latest") for step, words in STEPS if step == "FROM")


def test_nothing_of_this_machine_goes_into_the_container() -> None:
    left_out = (ROOT / ".dockerignore").read_text().split()
    for folder in (".git", ".venv", "build", "course"):  # grades and what was built here
        assert folder in left_out


def test_the_container_and_the_chart_start_the_same() -> None:
    (started,) = [json.loads(words) for step, words in STEPS if step == "CMD"]
    assert started == VALUES["singleuser"]["cmd"]
    script = started[2]
    copy, _, server = script.partition("; ")
    assert shlex.split(copy) == ["python", "-m", "hookscope_course", "course", "--to", "~/course"]
    assert server == 'exec jupyterhub-singleuser "$@"'
    assert VALUES["singleuser"]["defaultUrl"] == "/lab/tree/course/index.ipynb"
