"""More than one machine: the container file and the values for Zero to JupyterHub."""

from __future__ import annotations

import json
import re
import shlex

import yaml

from tests.shared import ROOT

DEPLOY = ROOT / "deploy"
VALUES = yaml.safe_load((DEPLOY / "kubernetes" / "values.yaml").read_text())
LINES = re.sub(r"\\\n", "", (DEPLOY / "Containerfile").read_text()).splitlines()
STEPS = [(line.split()[0], line.partition(" ")[2]) for line in LINES if line and not line.startswith("#")]

# The keys of the schema of chart 4.4 that we use; `python -m tests.deploy.chart` reads the schema itself.
KEYS = """
cull.enabled cull.every cull.timeout hub.concurrentSpawnLimit hub.config.JupyterHub.admin_access
hub.config.JupyterHub.authenticator_class hub.db.pvc.storage prePuller.continuous.enabled proxy.https.enabled
proxy.https.hosts proxy.https.letsencrypt.contactEmail proxy.https.type scheduling.podPriority.enabled
scheduling.userPlaceholder.enabled scheduling.userPlaceholder.replicas scheduling.userScheduler.enabled singleuser.cmd
singleuser.cpu.guarantee singleuser.cpu.limit singleuser.defaultUrl singleuser.image.name singleuser.image.tag
singleuser.memory.guarantee singleuser.memory.limit singleuser.networkPolicy.egressAllowRules.nonPrivateIPs
singleuser.networkPolicy.enabled singleuser.startTimeout singleuser.storage.capacity singleuser.storage.homeMountPath
"""


def leaves(values: object, name: str = "") -> list[str]:
    if not isinstance(values, dict):
        return [name]
    return [leaf for key, value in values.items() for leaf in leaves(value, f"{name}.{key}".lstrip("."))]


def test_the_values_have_only_keys_that_the_chart_knows() -> None:
    assert sorted(leaves(VALUES)) == sorted(KEYS.split())


def test_nobody_gets_in_before_a_sign_in_was_chosen_and_nothing_goes_unencrypted() -> None:
    assert VALUES["hub"]["config"]["JupyterHub"] == {"authenticator_class": "null", "admin_access": False}
    assert VALUES["proxy"]["https"]["enabled"] is True
    assert not re.search(r"password|secret|dummy", (DEPLOY / "kubernetes" / "values.yaml").read_text(), re.IGNORECASE)


def test_the_container_is_built_from_the_environment_and_learners_cannot_change_the_course() -> None:
    assert ("COPY", ". .") in STEPS
    installs = [words for step, words in STEPS if step == "RUN" and "micromamba install" in words]
    assert len(installs) == 1
    assert "--file environment.yml" in installs[0]
    assert "micromamba clean --all --yes" in installs[0], "else what was fetched stays in the layer"
    users = [words for step, words in STEPS if step == "USER"]
    assert users[0] == "root"
    assert users[-1] == "$NUMBER", "a container that runs as root"
    after = STEPS[STEPS.index(("USER", "$NUMBER")) :]
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
