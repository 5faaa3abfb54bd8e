"""Whether the server of a network answers, for the health checks of containers: ``python healthy.py FOLDER``.

FOLDER is that of a server or of a site. Its server is asked over TLS, with the network's own authority, for messages
without a signature: a sound one says 401, which takes both the gate and Flower's SuperLink behind it. Nothing but the
standard library is imported, so that the question costs next to nothing and moves no message.
"""

import http.client
import ssl
import sys
import tomllib
from pathlib import Path

ASKED = "/v1/fleet/pull-messages"
PROTOBUF = "application/protobuf"
SECONDS = 10


def complaint(folder: Path) -> str:
    """What is wrong; empty if nothing is."""
    settings, site = folder / "network.toml", folder / "site.toml"
    if settings.is_file():
        host, port = "127.0.0.1", int(tomllib.loads(settings.read_text())["port"])
    else:
        host, _, number = tomllib.loads(site.read_text())["server"].rpartition(":")
        host, port = host.strip("[]"), int(number)
    trusted = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    server = http.client.HTTPSConnection(host, port, timeout=SECONDS, context=trusted)
    try:
        server.request("POST", ASKED, b"", {"content-type": PROTOBUF, "accept": PROTOBUF})
        status = server.getresponse().status
    finally:
        server.close()
    return "" if status == 401 else f"{host}:{port} says {status} where 401 is expected"


if __name__ == "__main__":
    try:
        found = complaint(Path(sys.argv[1]))
    except (IndexError, KeyError, ValueError, OSError, http.client.HTTPException) as error:
        found = f"{type(error).__name__}: {error}"
    if found:
        sys.exit(found)
