"""deploy/compose.yaml as data: services, their commands, and the files they name."""

import re
from pathlib import Path

import pytest

from helpers import call

DEPLOY = Path(__file__).parents[1] / "deploy"


@pytest.fixture(scope="module")
def compose():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))


def test_a_database_servers_and_a_balancer(compose):
    services = compose["services"]
    assert set(services) == {"db", "fscil", "balancer"}
    assert services["fscil"]["depends_on"] == {"db": {"condition": "service_healthy"}}
    assert "healthcheck" in services["db"]
    assert set(services["fscil"]["secrets"]) <= set(compose["secrets"])
    assert {volume.partition(":")[0] for volume in services["db"]["volumes"]} == set(compose["volumes"])
    assert all(service["restart"] == "unless-stopped" for service in services.values())


def test_only_the_balancer_is_reached_from_outside_and_no_password_is_written_down(compose):
    ports = {name: service.get("ports", []) for name, service in compose["services"].items()}
    assert ports == {"db": [], "fscil": [], "balancer": ["127.0.0.1:8000:8000"]}
    for name, variable in (("db", "POSTGRES_PASSWORD"), ("fscil", "PGPASSWORD")):
        assert compose["services"][name]["environment"][variable].startswith("${POSTGRES_PASSWORD:?")


def test_the_command_of_the_servers_is_one_of_fscil(compose, capsys):
    command = compose["services"]["fscil"]["command"]
    assert call(command[0], "--help") == 0
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    assert {word for word in command if word.startswith("--")} <= known
    user = compose["services"]["db"]["environment"]["POSTGRES_USER"]
    assert command[1] == f"postgresql://{user}@db/{user}"
    assert command[command.index("--key") + 1] == f"/run/secrets/{compose['services']['fscil']['secrets'][0]}"


def test_the_files_that_it_names_are_there_and_agree(compose):
    build = compose["services"]["fscil"]["build"]
    docker = ((DEPLOY / build["context"]) / build["dockerfile"]).read_text(encoding="utf-8")
    (extras,) = re.findall(r"\.\[([\w,-]+)\]", docker)
    assert {"serve", "postgres"} <= set(extras.split(","))
    mounted, _, _ = compose["services"]["balancer"]["volumes"][0].partition(":")
    nginx = (DEPLOY / mounted).read_text(encoding="utf-8")
    assert "server fscil:8000" in nginx
    assert "EXPOSE 8000" in docker
