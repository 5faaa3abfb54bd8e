"""The folders of a network: who may read them, what their certificates say, and what is said of damaged ones."""

from __future__ import annotations

import datetime
import ipaddress
import re
import ssl
import stat
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.hazmat.primitives.serialization.ssh import load_ssh_private_key, load_ssh_public_key

from fedkeel.errors import DataError, FedkeelError, InputError
from fedkeel.network import keys, places
from fedkeel.network.places import ServerPlace, SitePlace
from fedkeel.network.server import place_of

HOSTS = ("server.example.org", "192.0.2.7", "2001:db8::7")


def network(folder: Path, sites: int = 3, hosts: tuple[str, ...] = HOSTS, **changed: Any) -> Path:
    places.make(folder, sites, hosts, **{"port": 9443, "link_port": 8000, "days": 30} | changed)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return network(tmp_path_factory.mktemp("made") / "network")


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_what_is_private_is_readable_by_its_owner_alone(made: Path) -> None:
    files = [made / "ca.key", made / "server" / "server.key", made / "server" / "runs.secret"]
    files += [made / "sites" / f"client-{client}" / "site.key" for client in range(3)]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    folders = [made / "server", *(made / "sites" / f"client-{client}" for client in range(3))]
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}
    assert {path.name for path in made.rglob("*.key")} == {"ca.key", "server.key", "site.key"}


def test_every_site_gets_its_own_key_and_nothing_of_the_others(made: Path) -> None:
    place = ServerPlace.at(made / "server")
    for client in range(3):
        folder = made / "sites" / f"client-{client}"
        assert sorted(path.name for path in folder.iterdir()) == ["ca.crt", "site.key", "site.toml"]
        key = load_ssh_private_key((folder / "site.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        public = load_ssh_public_key(place.public_keys()[client])
        assert isinstance(public, ec.EllipticCurvePublicKey)
        assert key.public_key().public_numbers() == public.public_numbers()
        assert SitePlace.at(folder).settings.client == client
        assert SitePlace.at(folder).settings.server == "server.example.org:9443"
    assert len(set(place.public_keys().values())) == 3


def test_the_certificate_names_this_machine_and_the_hosts(made: Path) -> None:
    found = certificate(made / "server" / "server.crt")
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(names.get_values_for_type(x509.DNSName)) == {"server.example.org", "localhost"}
    assert set(names.get_values_for_type(x509.IPAddress)) == {
        ipaddress.ip_address(one) for one in ("192.0.2.7", "2001:db8::7", "127.0.0.1")
    }
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_the_authority_signs_the_server_and_nothing_below_it(made: Path) -> None:
    root, leaf = certificate(made / "server" / "ca.crt"), certificate(made / "server" / "server.crt")
    leaf.verify_directly_issued_by(root)
    root.verify_directly_issued_by(root)
    assert root.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0
    copies = [made / "sites" / f"client-{client}" / "ca.crt" for client in range(3)]
    assert {path.read_bytes() for path in copies} == {(made / "server" / "ca.crt").read_bytes()}
    key = load_pem_private_key((made / "server" / "server.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    public = leaf.public_key()
    assert isinstance(public, ec.EllipticCurvePublicKey)
    assert key.public_key().public_numbers() == public.public_numbers()


def test_certificates_are_valid_from_an_hour_ago_for_the_days_asked(made: Path) -> None:
    now = datetime.datetime.now(datetime.UTC)
    for name, days in (("ca.crt", places.AUTHORITY_DAYS), ("server.crt", 30)):
        found = certificate(made / "server" / name)
        assert datetime.timedelta(0) < now - found.not_valid_before_utc - keys.EARLY < datetime.timedelta(hours=1)
        assert datetime.timedelta(days=days - 1) < found.not_valid_after_utc - now <= datetime.timedelta(days=days)


def test_a_renewed_certificate_is_one_of_the_same_authority(tmp_path: Path) -> None:
    made = network(tmp_path / "network", 2)
    before = certificate(made / "server" / "server.crt")
    places.renew_server(made, 50)
    after = certificate(made / "server" / "server.crt")
    assert after.serial_number != before.serial_number
    assert after.not_valid_after_utc - before.not_valid_after_utc > datetime.timedelta(days=19)
    assert shaken(made, made, "localhost")
    assert stat.S_IMODE((made / "server" / "server.key").stat().st_mode) == 0o600
    (made / "ca.key").unlink()
    with pytest.raises(DataError, match=r"ca.key cannot be read"):
        places.renew_server(made, 50)


def test_a_renewed_key_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    made = network(tmp_path / "network", 2)
    before = ServerPlace.at(made / "server").public_keys()
    path = places.renew_site(made, 1)
    after = ServerPlace.at(made / "server").public_keys()
    assert after[0] == before[0]
    assert after[1] != before[1]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(InputError, match="a client of the network, 0 to 1"):
        places.renew_site(made, 2)


def test_a_tls_client_believes_the_server_under_its_names_only(made: Path, tmp_path: Path) -> None:
    """OpenSSL itself, handshake for handshake, in memory; another network's authority is not believed."""
    other = network(tmp_path / "other", 1)
    assert shaken(made, made, "server.example.org")
    assert shaken(made, made, "localhost")
    assert shaken(made, made, "127.0.0.1")
    assert shaken(made, made, "2001:db8::7")
    for authority, name in ((made, "example.org"), (made, "192.0.2.8"), (other, "localhost")):
        with pytest.raises(ssl.SSLCertVerificationError):
            shaken(made, authority, name)


def shaken(server: Path, authority: Path, name: str) -> bool:
    """Whether a TLS handshake of two ends in this process comes to its end."""
    there = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    there.load_cert_chain(server / "server" / "server.crt", server / "server" / "server.key")
    here = ssl.create_default_context(cafile=str(authority / "server" / "ca.crt"))
    a, b = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [here.wrap_bio(a, b, server_hostname=name), there.wrap_bio(b, a, server_side=True)]
    done = [False, False]
    for _ in range(10):
        for number, end in enumerate(ends):
            try:
                end.do_handshake()
                done[number] = True
            except ssl.SSLWantReadError:
                continue
    return all(done)


@pytest.mark.parametrize(
    ("host", "address"), [("2001:db8::7", "[2001:db8::7]:9443"), ("::1", "[::1]:9443"), ("192.0.2.7", "192.0.2.7:9443")]
)
def test_sites_reach_the_first_host(host: str, address: str, tmp_path: Path) -> None:
    folder = network(tmp_path / "network", 1, (host,))
    assert SitePlace.at(folder / "sites" / "client-0").settings.server == address
    assert ServerPlace.at(folder / "server").settings.hosts == (host,)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    folder = network(tmp_path / "network", 1)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="is there already; choose another folder with --out, keys are never overwri"):
        network(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="is there already"):
        network(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    network(tmp_path / "empty", 1)
    with pytest.raises(FileExistsError):
        keys.write_private(folder / "ca.key", b"another")


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"sites": 0}, "--sites must be a number from 1 to 10,000, got 0"),
        ({"sites": 10_001}, "--sites must be"),
        ({"hosts": ()}, "--host must be"),
        ({"hosts": ("",)}, "--host must be a host name or an address, without a port, got ''"),
        ({"hosts": ("ok", "https://server")}, "--host must be"),
        ({"hosts": ("server:9443",)}, "--host must be"),
        ({"hosts": ("192.0.2.7:9443",)}, "--host must be"),
        ({"hosts": ("[::1]",)}, "--host must be"),
        ({"hosts": ("1:2:3",)}, "--host must be"),
        ({"hosts": ("a b",)}, "--host must be"),
        ({"hosts": ('a"b',)}, "--host must be"),
        ({"hosts": ("a\nb",)}, "--host must be"),
        ({"hosts": ("server\n",)}, "--host must be"),
        ({"hosts": ("ü.example",)}, "--host must be"),
        ({"hosts": ("a" * 254,)}, "--host must be"),
        ({"port": 8000}, r"--port must be another one than Flower's own \(8000\), got 8000"),
        ({"port": 0}, "--port must be a number from 1 to 65,535, got 0"),
        ({"port": 65_536}, "--port must be"),
        ({"link_port": 70_000}, "--link-port must be a number from 1 to 65,535, got 70000"),
        ({"days": 0}, "--days must be a number from 1 to 36,500, got 0"),
        ({"days": 10**7}, "--days must be"),
    ],
)
def test_wrong_arguments_leave_nothing_behind(changed: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=sentence):
        network(tmp_path / "network", **changed)
    assert not (tmp_path / "network").exists()


def pub(folder: Path, client: object) -> Path:
    return folder / "server" / "clients" / f"client-{client}.pub"


def test_gaps_and_keys_that_two_have_are_refused(tmp_path: Path) -> None:
    folder = network(tmp_path / "network")
    third = pub(folder, 2).read_bytes()
    pub(folder, 1).rename(pub(folder, 3))
    with pytest.raises(DataError, match=r"without a gap, got client-0\.pub, client-2\.pub, client-3\.pub"):
        ServerPlace.at(folder / "server")
    pub(folder, 3).rename(pub(folder, 1))
    assert list(ServerPlace.at(folder / "server").public_keys()) == [0, 1, 2]
    pub(folder, 1).write_bytes(third.strip() + b" somebody@else\n")
    with pytest.raises(DataError, match="holds one public key for two clients; every site has its own"):
        ServerPlace.at(folder / "server")
    for path in (folder / "server" / "clients").iterdir():
        path.unlink()
    with pytest.raises(DataError, match="without a gap, got none"):
        ServerPlace.at(folder / "server")


@pytest.mark.parametrize("name", ["01", "+1", "１", "one"])
def test_a_client_has_one_number_and_one_way_to_write_it(name: str, tmp_path: Path) -> None:
    """Which of client-1.pub and client-01.pub is client 1 would depend on the order of a folder."""
    folder = network(tmp_path / "network")
    pub(folder, name).write_bytes(keys.site_key()[1])
    with pytest.raises(DataError, match=re.escape(f"client-{name}.pub")):
        ServerPlace.at(folder / "server")


@pytest.mark.parametrize("content", [b"", b"nonsense", b"ecdsa-sha2-nistp384 AAAA", b"\xff\xfe\x00", b"-----BEGIN"])
def test_a_damaged_public_key_is_named(content: bytes, tmp_path: Path) -> None:
    folder = network(tmp_path / "network")
    pub(folder, 1).write_bytes(content)
    with pytest.raises(DataError, match=r"client-1\.pub is no public key"):
        ServerPlace.at(folder / "server")


@pytest.mark.parametrize("name", ["server/ca.crt", "server/server.crt", "sites/client-0/ca.crt"])
@pytest.mark.parametrize("content", [b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_a_damaged_certificate_is_named(name: str, content: bytes, tmp_path: Path) -> None:
    path = network(tmp_path / "network", 1) / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"{re.escape(path.name)} is no certificate"):
        (ServerPlace if "server/" in name else SitePlace).at(path.parent)


@pytest.mark.parametrize("name", ["ca.crt", "server.crt", "server.key", "runs.secret", "network.toml"])
def test_a_server_without_one_of_its_files_is_told_which(name: str, tmp_path: Path) -> None:
    folder = network(tmp_path / "network", 1) / "server"
    (folder / name).unlink()
    with pytest.raises(DataError, match=rf"(lacks|has no) {re.escape(name)}; see fedkeel network init\."):
        ServerPlace.at(folder)


@pytest.mark.parametrize("name", ["ca.crt", "site.key", "site.toml"])
def test_a_site_without_one_of_its_files_is_told_which(name: str, tmp_path: Path) -> None:
    folder = network(tmp_path / "network", 1) / "sites" / "client-0"
    (folder / name).unlink()
    with pytest.raises(DataError, match=rf"(lacks|has no) {re.escape(name)}; see fedkeel network init\."):
        SitePlace.at(folder)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "port = ",
        "port = 'x'\nhosts = ['a']\nlink_port = 1",
        "hosts = []\nport = 1\nlink_port = 2",
        "hosts = ['a']\nport = 0\nlink_port = 2",
        "hosts = ['a']\nport = 1\nlink_port = 2\nmore = 3",
        "\x00",
        "a = " + "[" * 5000,
    ],
)
def test_damaged_settings_are_told_of_in_a_sentence(text: str, tmp_path: Path) -> None:
    folder = network(tmp_path / "network", 1)
    for name, read in (("server/network.toml", ServerPlace.at), ("sites/client-0/site.toml", SitePlace.at)):
        path = folder / name
        path.write_text(text)
        with pytest.raises(FedkeelError, match=re.escape(path.name)):
            read(path.parent)
        path.write_bytes(b"\xff\xfe")
        with pytest.raises(FedkeelError, match=re.escape(path.name)):
            read(path.parent)


def test_folders_that_are_none_are_named(tmp_path: Path) -> None:
    folder = network(tmp_path / "network", 1)
    with pytest.raises(DataError, match=r"client-0 is not the folder of a server: it has no network\.toml"):
        ServerPlace.at(folder / "sites" / "client-0")
    with pytest.raises(DataError, match=r"server is not the folder of a site: it has no site\.toml"):
        SitePlace.at(folder / "server")
    with pytest.raises(DataError, match="is not the folder of a server"):
        ServerPlace.at(tmp_path / "nowhere")
    with pytest.raises(DataError):
        ServerPlace.at(tmp_path / "network" / "ca.key")


def test_the_servers_folder_is_found_in_the_networks(tmp_path: Path) -> None:
    folder = network(tmp_path / "network", 1)
    assert place_of(folder).folder == place_of(folder / "server").folder == folder / "server"
    with pytest.raises(DataError, match=r"nowhere is not the folder of a server"):
        place_of(tmp_path / "nowhere")
