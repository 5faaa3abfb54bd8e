"""``fedkeel network``: the same experiments over real sites."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedkeel.cli.options import DataDir, Json, Quiet

app = typer.Typer(
    name="network", help="Run experiments over real sites, with Flower.", no_args_is_help=True, rich_markup_mode=None
)

Network = Annotated[Path, typer.Option("--network", help="The folder that `network init` made.")]
Wait = Annotated[float, typer.Option(help="Seconds to wait for server and sites at the start.", min=0)]
Deadline = Annotated[float, typer.Option(help="Seconds that sites have to answer in a round.", min=0.1)]
Quorum = Annotated[
    float, typer.Option(help="Share of the called sites without which a round is not closed.", min=0, max=1)
]
Settings = Annotated[list[str] | None, typer.Option("--set", help="Change a field: --set training.rounds=50.")]
Plugins = Annotated[bool, typer.Option("--allow-plugins", help="Let module:Class be imported; code runs.")]
OwnModel = Annotated[
    str | None,
    typer.Option("--model", help="module:function that makes your own model, alike at server and sites."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on after the last whole round.")]
Runs = Annotated[Path, typer.Option("--out", help="Folder for the run's directory.")]
Megabytes = Annotated[int, typer.Option(help="Megabytes a minute that one site may send.", min=1)]


@app.command()
def init(
    sites: Annotated[int, typer.Option(help="Number of sites.", min=1)],
    host: Annotated[list[str], typer.Option(help="Name or address of the server, as sites reach it; may be repeated.")],
    port: Annotated[int, typer.Option(help="Port that sites connect to.", min=1, max=65535)] = 9443,
    link_port: Annotated[int, typer.Option(help="Port of Flower's SuperLink, on the server only.")] = 8000,
    days: Annotated[int, typer.Option(help="Days for which the certificates are valid.", min=1)] = 365,
    out: Annotated[Path, typer.Option(help="A new folder.")] = Path("network"),
) -> None:
    """Make certificates and keys: a folder for the server, and one for each site."""
    from fedkeel.cli.screen import say
    from fedkeel.network import flower, places

    flower.require()
    places.make(out, sites, host, port, link_port, days)
    say(f"server     {out / 'server'}   start it there: fedkeel network server {out / 'server'}")
    say(f"sites      {out / 'sites' / 'client-0'} …   carry each to its machine, and nowhere else")
    say(f"authority  {out / 'ca.key'}   signs certificates; keep it offline")


@app.command()
def renew(
    network: Network = Path("network"),
    client: Annotated[
        int | None, typer.Option(help="A new key for this client; the old one is let in no more.")
    ] = None,
    days: Annotated[int, typer.Option(help="Days for which a new certificate is valid.", min=1)] = 365,
) -> None:
    """Make a new certificate for the server, or a new key for a client; restart the server afterwards."""
    from fedkeel.cli.screen import say
    from fedkeel.network import places

    if client is None:
        places.renew_server(network, days)
        say(f"the certificate in {network / 'server'} is new, for {days} days; restart the server")
        return
    path = places.renew_site(network, client)
    say(f"carry {path} to the site of client {client}, in the place of its site.key; then restart server and site")


@app.command()
def server(
    folder: Annotated[Path, typer.Argument(help="The server's folder.")] = Path("network/server"),
    bind: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",
    megabytes: Megabytes = 1024,
    memory: Annotated[int, typer.Option(help="Gigabytes of memory that Flower's SuperLink may use.", min=2)] = 8,
) -> None:
    """Let sites join: Flower's SuperLink behind a gate that passes on nothing but what sites need."""
    from fedkeel.network.children import end_with_parent
    from fedkeel.network.server import place_of, serve

    end_with_parent()
    serve(place_of(folder), bind, megabytes << 20, memory << 30, _told)


@app.command()
def site(
    folder: Annotated[Path, typer.Argument(help="The site's folder, made by `network init`.")],
    data: Annotated[str, typer.Option(help="experiment.toml (its share), mine.npz (x, y) or module:function.")],
    test: Annotated[Path | None, typer.Option(help="Test samples of its own, beside mine.npz.")] = None,
    targets: Annotated[str, typer.Option(help="What y holds: labels or real numbers (real).")] = "labels",
    model: OwnModel = None,
    loss: Annotated[str | None, typer.Option(help="The loss of a model of your own, by name (mse, …).")] = None,
    allow_plugins: Plugins = False,
    data_dir: DataDir = None,
) -> None:
    """Take part with the data that are here; they never leave. Runs until Ctrl-C."""
    import sys

    from fedkeel.network.children import end_with_parent

    end_with_parent()
    sys.path.append("")  # for modules of the operator's own, named on this command line
    from fedkeel.network.site import work

    work(folder, data, test, targets, model, loss, allow_plugins, data_dir, _told)


@app.command()
def run(
    experiment: Annotated[Path, typer.Argument(help="The experiment (TOML).")],
    network: Network = Path("network"),
    settings: Settings = None,
    out: Runs = Path("runs"),
    resume: Resume = False,
    wait: Wait = 300.0,
    deadline: Deadline = 600.0,
    quorum: Quorum = 0.5,
    model: OwnModel = None,
    allow_plugins: Plugins = False,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run an experiment over the sites of a network, from the machine of its server."""
    import sys

    sys.path.append("")  # for modules of the operator's own, named on this command line
    from fedkeel.cli.experiments import Options
    from fedkeel.cli.network_run import run_all

    options = Options(out, resume, None, allow_plugins, data_dir, quiet, as_json)
    run_all(experiment, settings or [], options, network, wait, deadline, quorum, model)


@app.command()
def local(
    experiment: Annotated[Path, typer.Argument(help="The experiment (TOML); its data are dealt to the sites.")],
    sites: Annotated[int, typer.Option(help="Number of sites.", min=1, max=64)] = 5,
    settings: Settings = None,
    out: Runs = Path("runs"),
    resume: Resume = False,
    wait: Wait = 300.0,
    deadline: Deadline = 600.0,
    quorum: Quorum = 0.5,
    network: Annotated[
        Path | None, typer.Option("--network", help="Keep the network's folder here, to go on with it.")
    ] = None,
    allow_plugins: Plugins = False,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Try it out: server and sites as processes of this machine, with certificates and keys, for one experiment."""
    from fedkeel.cli.experiments import Options
    from fedkeel.cli.network_run import run_locally

    options = Options(out, resume, None, allow_plugins, data_dir, quiet, as_json)
    run_locally(experiment, settings or [], options, sites, network, wait, deadline, quorum)


@app.command()
def status(network: Network = Path("network"), as_json: Json = False) -> None:
    """Who has joined, and which runs Flower knows of."""
    from fedkeel.cli.network_run import show_status

    show_status(network, as_json)


def _told(sentence: str) -> None:
    """A line for whoever watches a server or a site, or reads its log."""
    import time

    from fedkeel.errors import printable

    print(f"{time.strftime('%H:%M:%S')} {printable(sentence)}", flush=True)
