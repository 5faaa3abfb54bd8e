"""Real processes on loopback, with certificates and keys: what comes out is what the simulator computes, to the bit,
whoever is killed on the way; and nothing is left running."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import httpx

from tests.network.bad_weather import BadWeather
from tests.network.processes import (
    FEDKEEL,
    Network,
    experiment,
    faults_of,
    printed,
    same_bits,
    simulated,
    trained,
)

long = pytest.mark.skipif(
    not os.environ.get("FEDKEEL_NETWORK_TESTS"), reason="takes some minutes: make test-network runs it"
)


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Network]:
    with Network(tmp_path) as made:
        yield made
    assert made.left_behind() == []


def run_of(net: Network, name: str = "scaffold") -> Path:
    return net.folder / "runs" / f"{name}-test"


def test_sites_give_the_bits_of_the_simulator(net: Network) -> None:
    """SCAFFOLD: control variates stay at the sites, and the model must be that of ``serial`` all the same."""
    file = experiment(net.folder)
    net.up(file)
    net.run("run", file)
    assert net.result("run") == 0, net.log("run")
    (told,) = printed(net.log("run"))
    assert (told["rounds"], told["executor"]) == (4, "3 sites over Flower")
    assert same_bits(trained(run_of(net)), simulated(file, net.folder))
    ca = ssl.create_default_context(cafile=str(net.network / "server" / "ca.crt"))
    gate = f"https://127.0.0.1:{net.port}"
    for path in ("/v1/control/list-nodes", "/v1/runtime/acquire-task", "/v1/fleet/register-node", "/docs", "/"):
        assert httpx.post(gate + path, verify=ca).status_code == 404, path
    with pytest.raises(httpx.TransportError):  # without TLS there is no answer
        httpx.post(f"http://127.0.0.1:{net.port}/v1/fleet/pull-messages")


@long
@pytest.mark.parametrize("name", ["fedavg", "feddc", "fedveca", "fedgvrgm", "gradma", "mimelite"])
def test_one_algorithm_of_each_kind(net: Network, name: str) -> None:
    """Stateless; drift variables; steps set by the server; feedback; memory on both sides; two gradients."""
    file = experiment(net.folder, name, rounds=3)
    net.up(file)
    net.run("run", file)
    assert net.result("run") == 0, net.log("run")
    assert same_bits(trained(run_of(net, name)), simulated(file, net.folder))


@long
def test_a_site_that_is_killed_in_a_round_comes_back_to_the_same_bits(net: Network) -> None:
    """With a quorum of all, its round waits for it; what it remembers is on its disk."""
    file = experiment(net.folder, rounds=6)
    net.up(file)
    net.run("run", file, "--quorum", "1", "--deadline", "60")
    net.until(lambda: net.rounds("scaffold-test") >= 2, "two rounds")
    net.kill("client-1", signal.SIGSTOP)  # it has, or will have, a call that it does not answer
    net.until(lambda: "joined" in net.log("client-1"), "client 1")
    net.kill("client-1")
    net.site(1, file)
    assert net.result("run") == 0, net.log("run")
    assert same_bits(trained(run_of(net)), simulated(file, net.folder))


@long
def test_a_slow_site_is_left_out_and_takes_part_again(net: Network) -> None:
    """Past the deadline a round closes without it, by name; its stale call changes nothing when it goes on."""
    file = experiment(net.folder, rounds=8)
    net.up(file)
    net.run("run", file, "--deadline", "4", "--quorum", "0.5")
    net.until(lambda: net.rounds("scaffold-test") >= 1, "a round")
    net.kill("client-2", signal.SIGSTOP)
    net.until(lambda: any(kind == "silent" for kind, _ in faults_of(run_of(net))), "a round without it")
    net.kill("client-2", signal.SIGCONT)
    assert net.result("run") == 0, net.log("run")
    (told,) = printed(net.log("run"))
    assert told["rounds"] == 8
    assert all("client 2" in text for kind, text in faults_of(run_of(net)) if kind == "silent")


@long
def test_the_superlink_is_killed_and_the_run_goes_on(net: Network) -> None:
    file = experiment(net.folder, rounds=6)
    net.up(file)
    net.run("run", file, "--quorum", "1")
    net.until(lambda: net.rounds("scaffold-test") >= 2, "two rounds")
    os.kill(net.superlink(), signal.SIGKILL)
    assert net.result("run") == 0, net.log("run")
    assert "started anew" in net.log("server")
    assert same_bits(trained(run_of(net)), simulated(file, net.folder))


@long
@pytest.mark.parametrize("victims", [("run",), ("run", "server")])
def test_a_killed_run_is_resumed_to_the_same_bits(net: Network, victims: tuple[str, ...]) -> None:
    file = experiment(net.folder, "feddc", rounds=6)
    net.up(file)
    net.run("run", file, "--quorum", "1")
    net.until(lambda: net.rounds("feddc-test") >= 2, "two rounds")
    for victim in victims:
        net.kill(victim)
    if "server" in victims:
        net.server()
    net.run("again", file, "--quorum", "1", "--resume")
    assert net.result("again") == 0, net.log("again")
    assert same_bits(trained(run_of(net, "feddc")), simulated(file, net.folder))


@long
def test_late_data_and_broken_connections_change_no_bit(net: Network) -> None:
    """Every site is behind a stretch of network that delays each piece by 20 ms and breaks one connection in fifty."""
    file = experiment(net.folder)
    with BadWeather(net.port, 0.02, 0.02) as weather:
        for client in range(net.sites):
            settings = net.network / "sites" / f"client-{client}" / "site.toml"
            settings.write_text(f'client = {client}\nserver = "127.0.0.1:{weather.port}"\n')
        net.up(file)
        net.run("run", file, "--quorum", "1", "--deadline", "30")
        assert net.result("run") == 0, net.log("run")
        assert weather.broken > 0
    assert same_bits(trained(run_of(net)), simulated(file, net.folder))


@pytest.fixture
def hosts() -> Iterator[tuple[str, str]]:
    """Two hosts of a network of their own, 10.207.0.1 and 10.207.0.2, by the names of their namespaces."""
    here, there = f"fk-server-{os.getpid()}", f"fk-site-{os.getpid()}"
    steps = [
        f"netns add {here}",
        f"netns add {there}",
        f"link add fk-a netns {here} type veth peer name fk-b netns {there}",
        f"-n {here} addr add 10.207.0.1/30 dev fk-a",
        f"-n {there} addr add 10.207.0.2/30 dev fk-b",
        f"-n {here} link set lo up",
        f"-n {there} link set lo up",
        f"-n {here} link set fk-a up",
        f"-n {there} link set fk-b up",
    ]
    try:
        for step in steps:
            try:
                subprocess.run(["ip", *step.split()], check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError):
                pytest.skip("network namespaces cannot be made here: they need iproute2 and the rights of root")
        yield here, there
    finally:
        for name in (here, there):
            with suppress(OSError):
                subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@long
def test_two_hosts_between_which_only_the_gate_is_open(tmp_path: Path, hosts: tuple[str, str]) -> None:
    """Sites on one host, the server on another: the same bits; and from a site's host Flower itself is not reached."""
    with Network(tmp_path, host="10.207.0.1") as net:
        net.at_server, net.at_sites = (["ip", "netns", "exec", name] for name in hosts)
        file = experiment(net.folder)
        net.up(file)
        net.run("run", file)
        assert net.result("run") == 0, net.log("run")
        assert same_bits(trained(run_of(net)), simulated(file, net.folder))
        script = "import socket, sys; socket.create_connection(('10.207.0.1', int(sys.argv[1])), 5)"
        for port, reached in ((net.port, True), (net.link_port, False)):
            tried = [*net.at_sites, FEDKEEL[0], "-c", script, str(port)]
            assert (subprocess.run(tried, check=False, capture_output=True).returncode == 0) == reached
    assert net.left_behind() == []


@long
def test_a_stranger_cannot_join(net: Network) -> None:
    """A key that the server does not know is refused in a sentence; so is a server that the site does not know."""
    file = experiment(net.folder)
    net.server()
    net.until(lambda: "may join" in net.log("server"), "the server")
    with Network(net.folder / "other") as other:
        key = other.network / "sites" / "client-0" / "site.key"
        mine = net.network / "sites" / "client-0" / "site.key"
        mine.chmod(0o600)
        mine.write_bytes(key.read_bytes())
        net.site(0, file)
        assert net.result("client-0") == 2
        assert "refuses this site" in net.log("client-0")
        authority = net.network / "sites" / "client-1" / "ca.crt"
        authority.write_bytes((other.network / "server" / "ca.crt").read_bytes())
        net.site(1, file)
        assert net.result("client-1") == 2
        assert "is not the server of this network" in net.log("client-1")


@long
@pytest.mark.parametrize(
    ("trick", "said"),
    [
        ("nan", "not finite"),
        ("shape", "in place of"),
        ("client", "speaks for client"),
        ("round", "its answer is to round"),
        ("nonce", "does not repeat the number"),
        ("kind", "is no letter of fedkeel"),
        ("swollen", "is no letter of fedkeel"),
        ("repeated", "more than the 1,073,741,824 bytes"),
        ("sender", ""),
        ("huge", ""),
    ],
)
def test_a_hostile_site_is_left_out_by_name(net: Network, trick: str, said: str) -> None:
    """Whatever client 1 does, the others' rounds go on, and the record names it."""
    file = experiment(net.folder, "fedavg", faults={"bad_update": "skip-client"})
    net.server()
    for client in (0, 2):
        net.site(client, file)
    folder = net.network / "sites" / "client-1"
    script = Path(__file__).with_name("hostile_site.py")
    net.start("client-1", [FEDKEEL[0], str(script), str(folder), str(file), trick])
    net.run("run", file, "--deadline", "20")
    assert net.result("run") == 0, net.log("run")
    kinds = {"nan": "skipped", "sender": "silent", "huge": "silent"}
    found = [text for kind, text in faults_of(run_of(net, "fedavg")) if kind == kinds.get(trick, "refused")]
    assert len(found) == 4
    assert all("client 1" in text and said in text for text in found)


@long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_local_ends_every_process_that_it_started(tmp_path: Path, number: int) -> None:
    """Also when it is killed: a process that finds its parent gone ends by itself."""
    from tests.network.processes import children_of, command_of

    file = experiment(tmp_path, rounds=1000)
    command = [*FEDKEEL, "network", "local", str(file), "--sites", "3", "--out", str(tmp_path / "runs")]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as local:
        made = Network(tmp_path / "unused")  # for its patience
        made.until(lambda: made.seen.update(children_of(local.pid)) or len(made.seen) >= 5, "five processes")
        made.until(lambda: (tmp_path / "runs").exists(), "the first round")
        made.seen.update(children_of(local.pid))
        local.send_signal(number)
        local.wait(60)
    made.until(lambda: not any(command_of(pid) for pid in made.seen), "all to end")
