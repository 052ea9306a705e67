"""What `deploy/` ships, held against other people's tools, and the image's steps played in a fresh root; the wheel in a
fresh environment."""

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.support.adapters.fresh_root import Stage, build
from tests.support.adapters.gateway_processes import LISTENING, process, server
from tests.support.adapters.http import Caller
from tests.test_packaging import NOT_SOURCE

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
USER = "10001:10001"
VOLUMES = ("/tmp", "/var/lib/fairsched")
KEYS = ("gold", "free", "admin")
PICKER = 'listen = "127.0.0.1:0"\n[pool]\nendpoints = ["127.0.0.1:1"]\nwindow_tokens = 100\nwindow_requests = 4\n'
PIP = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}


def tool(name: str) -> str:
    """A tool of the environment that the tests run in, or of this machine; without it the test is skipped."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def ran(*command: str, **options: Any) -> str:
    """What a command that succeeds says."""
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command, capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# --- configuration ----------------------------------------------------------------------------------------------------


def test_an_editors_tool_follows_the_schema(tmp_path: Path) -> None:
    """Taplo takes the schema from the comment of a file, passes it, and marks a weight of 0."""
    program = "import sys; from fairsched.cli import main; sys.exit(main(['gateway', '--schema']))"
    (tmp_path / "gateway.schema.json").write_text(ran(sys.executable, "-c", program, cwd=ROOT))
    text = '#:schema ./gateway.schema.json\n[[server]]\nurl = "http://h:1"\nwindow_tokens = 5\n[client.a]\nweight = 1\n'
    for weight, status in (("weight = 1", 0), ("weight = 0", 1), ("wieght = 1", 1)):
        (tmp_path / "gateway.toml").write_text(text.replace("weight = 1", weight))
        command = [tool("taplo"), "check", "gateway.toml"]
        assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == status


# --- image ------------------------------------------------------------------------------------------------------------


def test_the_dockerfile_has_no_lint() -> None:
    """Hadolint finds nothing, with all of its rules."""
    ran(tool("hadolint"), "--no-color", str(DEPLOY / "Dockerfile"))


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Stage]:
    """The last stage of the Dockerfile, played here."""
    if "integration" not in pytestconfig.getoption("markexpr"):
        pytest.skip("`make integrations` plays the image: it installs packages")
    folder = tmp_path_factory.mktemp("image")
    tried = ["unshare", "--mount", "true"]
    if os.geteuid() or subprocess.run(tried, capture_output=True, check=False).returncode:
        pytest.skip("a fresh root needs root and unshare")
    if subprocess.run(["/usr/bin/python3", "-c", "import ensurepip"], capture_output=True, check=False).returncode:
        pytest.skip("the system's Python makes no environments: Debian's python3-venv has what it needs")
    yield build(DEPLOY / "Dockerfile", ROOT, folder, PIP)
    shutil.rmtree(folder)


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except URLError:
        return False


def test_the_image_serves_as_nobody_with_a_read_only_root(image: Stage) -> None:
    """Its entry point serves as a user without rights, its health check passes then and not before, its state is
    written on the volume, and SIGTERM ends it with status 0."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    image.at("/etc/fairsched/gateway.toml").write_text(
        f'listen = "127.0.0.1:{port}"\nunknown_clients = "own"\n'
        '[store]\nurl = "file:///var/lib/fairsched"\ngateways = 1\n'
        '[[server]]\nurl = "http://127.0.0.1:9"\nwindow_tokens = 100\n'
    )
    health = [word.replace("8080", str(port)) for word in image.health]
    check = image.argv(health, volumes=VOLUMES)
    assert subprocess.run(check, capture_output=True, check=False).returncode != 0
    command = image.argv([*image.entrypoint, *image.command], volumes=VOLUMES)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout is not None
            assert "serving" in started.stdout.readline()
            status = Path(f"/proc/{started.pid}/status").read_text()
            assert "Uid:\t10001\t10001\t10001\t10001" in status
            assert subprocess.run(check, capture_output=True, check=False).returncode == 0
            assert _answers(f"http://127.0.0.1:{port}/healthz")
            state = Path(f"/proc/{started.pid}/root/var/lib/fairsched")
            deadline = time.monotonic() + 60
            while not list(state.iterdir()) and time.monotonic() < deadline:
                time.sleep(0.05)
            assert list(state.iterdir())
            started.terminate()
            assert started.wait(60) == 0
        finally:
            started.kill()


def test_the_image_has_no_tools_that_build(image: Stage) -> None:
    """The last stage has no pip, no sources of ours, and nothing that its user may write but the volume."""
    inside = "import importlib.util as u, os; print(u.find_spec('pip'), os.path.exists('/src/pyproject.toml'))"
    said = ran(*image.argv(["/opt/fairsched/bin/python", "-c", inside], volumes=VOLUMES))
    assert said.split() == ["None", "False"]
    program = "import os; print(json.dumps([p for p, _, _ in os.walk('/opt/fairsched') if os.access(p, os.W_OK)]))"
    assert json.loads(ran(*image.argv(["python3", "-c", f"import json; {program}"]))) == []


# --- Kubernetes -------------------------------------------------------------------------------------------------------

CHART = DEPLOY / "helm/fairsched-gateway"
MANIFESTS = DEPLOY / "kubernetes/gateway.yaml"
VERSION = "1.33"
FULL = {
    "config": {
        "listen": "0.0.0.0:9443",
        "processes": 2,
        "server": [{"url": "http://vllm:8000", "window_tokens": 10_000_000, "api_key": "sk-1"}],
        "organisation": {"acme": {"users": {"ann": 2}}},
        "client": {"gold": {"weight": 4, "organisation": "acme"}},
        "limits": {"leave_seconds": 7.5, "drain_seconds": 600, "bodies_bytes": 8 << 30, "body_seconds": 0.25},
        "tls": {"certificate": "/etc/fairsched-tls/tls.crt", "key": "/etc/fairsched-tls/tls.key"},
    },
    "secret": True,
    "tlsSecret": "certificate",
    "state": {"claim": "debts"},
    "nodeSelector": {"pool": "cpu"},
    "tolerations": [{"key": "cpu", "operator": "Exists"}],
}
"""Every branch of the templates."""


def rendered(values: dict[str, Any]) -> dict[str, str]:
    """The chart's manifests by file, as Helm's own library renders them."""
    helm = pytest.importorskip("helm_python")
    with helm.Chart.load(str(CHART)) as chart:
        files: dict[str, str] = chart.render(values, name="fairsched-gateway", namespace="default")
    return {Path(name).name: text for name, text in sorted(files.items()) if name.endswith(".yaml")}


def objects(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The chart's objects by file."""
    yaml = pytest.importorskip("yaml")
    return {name: yaml.safe_load(text) for name, text in rendered(values).items()}


def test_the_chart_has_no_lint() -> None:
    """Helm's linter has no warning and no error."""
    helm = pytest.importorskip("helm_python")
    said = helm.lint(str(CHART))
    assert said["errors"] == []
    assert [message for message in said["messages"] if message["severity"] > 1] == []


@pytest.mark.parametrize("values", [{}, FULL], ids=["defaults", "everything"])
def test_kubernetes_takes_the_objects(values: dict[str, Any]) -> None:
    """Each follows Kubernetes' schema, strictly: no field is unknown."""
    validator = pytest.importorskip("kubernetes_validate")
    found = objects(values)
    assert {each["kind"] for each in found.values()} >= {"Deployment", "Service", "PodDisruptionBudget"}
    for each in found.values():
        validator.validate(each, VERSION, strict=True)
    found["deployment.yaml"]["spec"]["template"]["spec"]["terminationGraceSeconds"] = 1
    with pytest.raises(validator.ValidationError):
        validator.validate(found["deployment.yaml"], VERSION, strict=True)


@pytest.mark.parametrize("values", [{}, FULL], ids=["defaults", "everything"])
def test_the_chart_writes_a_file_that_the_gateway_reads(tmp_path: Path, values: dict[str, Any]) -> None:
    """All settings arrive with their values and types, large numbers, fractions and tables included; the pod may take
    longer to end than the gateway, whose port and probes are those of the file."""
    from fairsched.engines.gateway.config import read_config

    found = objects(values)
    config = found["config.yaml"]
    kind, field = ("Secret", "stringData") if values else ("ConfigMap", "data")
    assert config["kind"] == kind
    path = tmp_path / "gateway.toml"
    path.write_text(config[field]["gateway.toml"])
    read = read_config(path)
    spec = found["deployment.yaml"]["spec"]["template"]["spec"]
    limits = read.limits
    assert spec["terminationGracePeriodSeconds"] > limits.leave_seconds + limits.drain_seconds + 15
    (container,) = spec["containers"]
    assert container["ports"][0]["containerPort"] == read.address[1]
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["readinessProbe"]["httpGet"]["scheme"] == ("HTTPS" if read.tls else "HTTP")
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert spec["securityContext"]["runAsNonRoot"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in spec["volumes"]}
    if values:
        assert read.servers[0].window_tokens == 10_000_000
        assert (limits.leave_seconds, limits.bodies_bytes, limits.body_seconds) == (7.5, 8 << 30, 0.25)
        assert read.organisations["acme"].users == {"ann": 2}
        assert spec["containers"][0]["image"] == "fairsched:0.1.0"


def test_the_plain_manifests_are_the_charts() -> None:
    """`deploy/kubernetes` is what the chart's defaults render to, file after file."""
    head = MANIFESTS.read_text().partition("---\n")[0]
    assert MANIFESTS.read_text() == head + "".join(f"---\n{text.strip()}\n" for text in rendered({}).values())


# --- the wheel --------------------------------------------------------------------------------------------------------


def installed(extra: str, folder: Path) -> Path:
    """`fairsched` of an environment of its own, with the wheel that pip builds of this tree, and an extra."""
    tree = shutil.copytree(ROOT, folder / "source", symlinks=True, ignore=NOT_SOURCE)
    ran(sys.executable, "-m", "venv", str(folder / "environment"))
    programs = folder / "environment" / "bin"
    ran(str(programs / "pip"), "install", "--quiet", f"fairsched[{extra}] @ {tree.as_uri()}")
    return programs / "fairsched"


def own(fairsched: Path, *options: str, **fields: Any) -> str:
    """What `fairsched gateway` says of itself there, where no other code of ours is found."""
    return ran("env", "-u", "PYTHONPATH", str(fairsched), "gateway", *options, **fields)


def test_two_commands_lead_from_the_wheel_to_a_protected_server(tmp_path: Path) -> None:
    """With the page's file: the check prints the bound, the gateway answers the clients' keys and no other."""
    fairsched = installed("gateway", tmp_path)
    page = (ROOT / "docs/tutorials/gateway.md").read_text()
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    shown = dict(zip(("admin", "gold", "free"), re.findall(r"sha256:\w+", text), strict=True))
    for name in KEYS:
        text = text.replace(shown[name], own(fairsched, "--hash-key", input=f"key of {name}\n").strip())
    path = tmp_path / "gateway.toml"
    with server() as (_, url):
        path.write_text(text.replace("127.0.0.1:8080", "127.0.0.1:0").replace("http://127.0.0.1:8000", url))
        assert "two clients that wait differ by" in own(fairsched, str(path), "--check")
        with process(["env", "-u", "PYTHONPATH", str(fairsched), "gateway", str(path)]) as (_, line):
            found = LISTENING.search(line)
            assert found is not None, line

            async def statuses() -> list[int]:
                async with Caller(found[1]) as caller:
                    headers = [{"authorization": f"Bearer key of {name}"} for name in (*KEYS, "another")]
                    body = {"model": "MODEL", "prompt": "Hello", "max_tokens": 16}
                    return [(await caller.post("/v1/completions", json=body, headers=each)).status for each in headers]

            assert asyncio.run(statuses()) == [200, 200, 401, 401]


def test_the_pickers_extra_is_enough_for_the_picker(tmp_path: Path) -> None:
    """Its check prints the bound."""
    fairsched = installed("endpoint-picker", tmp_path)
    path = tmp_path / "picker.toml"
    path.write_text(PICKER)
    assert "cost units" in own(fairsched, "--picker", str(path), "--check")
