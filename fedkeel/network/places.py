"""The folders of a network: what the server holds, and what each site is given.

network/ca.key                 the authority; needed again only to renew certificates, so keep it elsewhere
network/server/                certificate and key, the public keys of all sites, Flower's own files
network/sites/client-3/        what site 3 needs: its key, the authority's certificate, where the server is
"""

from __future__ import annotations

import ipaddress
import re
import secrets
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedkeel.algorithms.validate import sentence
from fedkeel.errors import DataError, InputError, invalid
from fedkeel.network import keys
from fedkeel.runs.atomic import replacing

MOST_SITES = 10_000
AUTHORITY_DAYS = 3650
"""For which an authority is valid at least: certificates are renewed, it is not."""
MOST_DAYS = 36_500
SETTINGS = "network.toml"
SITE = "site.toml"
S = TypeVar("S", bound=BaseModel)
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")


class ServerSettings(BaseModel):
    """``network.toml`` in the folder of the server."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hosts: tuple[str, ...] = Field(min_length=1, description="names and addresses under which sites reach the server")
    port: int = Field(ge=1, le=65535, description="the port that sites connect to")
    link_port: int = Field(ge=1, le=65535, description="Flower's own port, on this machine only")


class SiteSettings(BaseModel):
    """``site.toml`` in the folder of a site."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    client: int = Field(ge=0, lt=MOST_SITES, description="the number of its client")
    server: str = Field(description="host:port of the server")


@dataclass(frozen=True)
class ServerPlace:
    """The folder of a server."""

    folder: Path
    settings: ServerSettings

    @property
    def authority(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def certificate(self) -> Path:
        return self.folder / "server.crt"

    @property
    def key(self) -> Path:
        return self.folder / "server.key"

    @property
    def secret(self) -> Path:
        """With it, and only with it, a process on this machine may drive a run."""
        return self.folder / "runs.secret"

    @property
    def flower(self) -> Path:
        """Where Flower keeps its database and what it logs."""
        return self.folder / "flower"

    @property
    def traffic(self) -> Path:
        """Where the gate writes how many bytes passed it."""
        return self.flower / "traffic.json"

    @property
    def link(self) -> str:
        """Where Flower's SuperLink listens."""
        return f"127.0.0.1:{self.settings.link_port}"

    def public_keys(self) -> dict[int, bytes]:
        """The public key of every site, by the number of its client, from 0 without a gap."""
        found = {}
        for path in (self.folder / "clients").glob("client-*.pub"):
            number = path.stem.removeprefix("client-")
            if not re.fullmatch("0|[1-9][0-9]{0,8}", number):
                raise DataError(f"{path} is the key of no client: its name must be client-3.pub or the like.")
            found[int(number)] = path.read_bytes().strip()
            keys.check_public(path, found[int(number)])
        if sorted(found) != list(range(len(found))) or not found:
            raise DataError(
                f"{self.folder / 'clients'} must hold client-0.pub, client-1.pub, … without a gap, got "
                f"{', '.join(f'client-{number}.pub' for number in sorted(found)) or 'none'}."
            )
        twice = len(found) - len({_bare(key) for key in found.values()})
        if twice:
            raise DataError(f"{self.folder / 'clients'} holds one public key for two clients; every site has its own.")
        return {client: found[client] for client in sorted(found)}

    @classmethod
    def at(cls, folder: Path) -> ServerPlace:
        """The folder of a server, as ``fedkeel network init`` has made it."""
        place = cls(folder, _read(folder / SETTINGS, ServerSettings, "the folder of a server"))
        _require(place.authority, place.certificate, place.key, place.secret)
        keys.check_certificates(place.authority, place.certificate)
        place.public_keys()
        return place


@dataclass(frozen=True)
class SitePlace:
    """The folder of a site."""

    folder: Path
    settings: SiteSettings

    @property
    def authority(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def key(self) -> Path:
        return self.folder / "site.key"

    @property
    def memory(self) -> Path:
        """What the client remembers from round to round."""
        return self.folder / "memory"

    @classmethod
    def at(cls, folder: Path) -> SitePlace:
        """The folder of a site, as ``fedkeel network init`` has made it."""
        place = cls(folder, _read(folder / SITE, SiteSettings, "the folder of a site"))
        _require(place.authority, place.key)
        keys.check_certificates(place.authority)
        return place


def make(folder: Path, sites: int, hosts: Sequence[str], port: int, link_port: int, days: int) -> None:
    """A new network: an authority, a server and so many sites, each in a folder that can be carried to its machine."""
    if not 1 <= sites <= MOST_SITES:
        raise invalid("--sites", f"a number from 1 to {MOST_SITES:,}", sites)
    for host in hosts or [""]:
        if not _is_host(host):
            raise invalid("--host", "a host name or an address, without a port", host)
    for name, number in (("--port", port), ("--link-port", link_port)):
        if not 1 <= number <= 65535:
            raise invalid(name, "a number from 1 to 65,535", number)
    if not 1 <= days <= MOST_DAYS:
        raise invalid("--days", f"a number from 1 to {MOST_DAYS:,}", days)
    if port == link_port:
        raise invalid("--port", f"another one than Flower's own ({link_port})", port)
    if folder.exists() and any(folder.iterdir() if folder.is_dir() else [folder]):
        raise InputError(f"{folder} is there already; choose another folder with --out, keys are never overwritten.")
    server = folder / "server"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for inner in (server, server / "clients", folder / "sites"):
        inner.mkdir(mode=0o700)
    signer, authority = keys.authority(max(days, AUTHORITY_DAYS))
    root = authority.public_bytes(Encoding.PEM)
    keys.write_private(folder / "ca.key", keys.private_bytes(signer))
    key, certificate = keys.server_certificate(hosts, days, signer, authority)
    keys.write_private(server / "server.key", keys.private_bytes(key))
    keys.write_private(server / "runs.secret", secrets.token_hex(32).encode())
    (server / "server.crt").write_bytes(certificate.public_bytes(Encoding.PEM))
    (server / "ca.crt").write_bytes(root)
    listed = ", ".join(f'"{host}"' for host in hosts)
    settings = f"hosts = [{listed}]\nport = {port}\nlink_port = {link_port}  # on this machine only\n"
    (server / SETTINGS).write_text(settings, encoding="utf-8")
    for client in range(sites):
        private, public = keys.site_key()
        site = folder / "sites" / f"client-{client}"
        site.mkdir(mode=0o700)
        keys.write_private(site / "site.key", private)
        (site / "ca.crt").write_bytes(root)
        address = f"[{hosts[0]}]:{port}" if ":" in hosts[0] else f"{hosts[0]}:{port}"
        (site / SITE).write_text(f'client = {client}\nserver = "{address}"\n', encoding="utf-8")
        (server / "clients" / f"client-{client}.pub").write_bytes(public + b"\n")


def renew_server(folder: Path, days: int) -> None:
    """A new certificate for the server of a network, signed by its authority; sites notice nothing."""
    place = ServerPlace.at(folder / "server")
    try:
        signer = load_pem_private_key((folder / "ca.key").read_bytes(), None)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{folder / 'ca.key'} cannot be read ({error}); bring the authority's key here first."
        ) from None
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise DataError(f"{folder / 'ca.key'} is not the key of this network's authority.")
    authority = x509.load_pem_x509_certificate(place.authority.read_bytes())
    key, certificate = keys.server_certificate(place.settings.hosts, days, signer, authority)
    for path, content in (
        (place.key, keys.private_bytes(key)),
        (place.certificate, certificate.public_bytes(Encoding.PEM)),
    ):
        with replacing(path) as temporary:  # which hands the permissions on
            temporary.write_bytes(content)


def renew_site(folder: Path, client: int) -> Path:
    """A new key for a client, in a folder to be carried to its site; the old key can join no more. Where it is."""
    place = ServerPlace.at(folder / "server")
    if client not in place.public_keys():
        raise invalid("--client", f"a client of the network, 0 to {len(place.public_keys()) - 1}", client)
    private, public = keys.site_key()
    new = folder / "sites" / f"client-{client}-new-key"
    new.mkdir(parents=True, mode=0o700, exist_ok=True)
    (new / "site.key").unlink(missing_ok=True)
    keys.write_private(new / "site.key", private)
    with replacing(place.folder / "clients" / f"client-{client}.pub") as temporary:
        temporary.write_bytes(public + b"\n")
    return new / "site.key"


def _is_host(host: str) -> bool:
    """Whether something is a name or an address, without a port; an address with colons is one of IPv6."""
    try:
        return "%" not in host and bool(ipaddress.ip_address(host))
    except ValueError:
        return bool(_HOST.fullmatch(host)) and len(host) <= 253


def _bare(public: bytes) -> bytes:
    """A public key without its comment."""
    return b" ".join(public.split()[:2])


def _read(path: Path, kind: type[S], what: str) -> S:
    try:
        return kind.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise DataError(f"{path.parent} is not {what}: it has no {path.name}; see fedkeel network init.") from None
    except ValidationError as error:
        raise sentence(path.name, kind, error) from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read: {error}.") from None


def _require(*paths: Path) -> None:
    for path in paths:
        if not path.is_file():
            raise DataError(f"{path.parent} lacks {path.name}; see fedkeel network init.")
