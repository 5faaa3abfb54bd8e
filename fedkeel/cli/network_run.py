"""What ``fedkeel network run``, ``local`` and ``status`` do; it is imported only when one of them is asked for."""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from fedkeel import build, config
from fedkeel.cli import experiments
from fedkeel.cli.experiments import Options
from fedkeel.cli.life import Life, reports
from fedkeel.cli.main import print_json
from fedkeel.cli.screen import headline, say, show_table
from fedkeel.data.sources import SITES, brings_clients
from fedkeel.engine.sites import SiteRounds
from fedkeel.errors import InputError, invalid
from fedkeel.network import flower, places
from fedkeel.network.children import Children
from fedkeel.network.places import ServerPlace
from fedkeel.network.run import NetworkRun, Terms, check_experiment
from fedkeel.network.run import run as run_over_sites
from fedkeel.network.server import free_port, place_of
from fedkeel.network.site import module_of
from fedkeel.runs.interrupt import StopRequest
from fedkeel.runs.lock import RunLock
from fedkeel.session import Listeners

STARTS = 120.0
"""Seconds that server and sites of this machine have to start."""


def run_all(
    path: Path,
    settings: list[str],
    options: Options,
    network: Path,
    wait: float,
    deadline: float,
    quorum: float,
    model: str | None = None,
) -> None:
    """Run every experiment that a file stands for over the sites of a network."""
    module = None if model is None else module_of(model)
    _checked(path, settings, options, wait, deadline, quorum)
    place = place_of(network)
    flower.prepare(place.flower)
    from fedkeel.network.flower_link import GridTransport, Link

    link = Link(place)
    if not link.is_up():
        absent = f"the server of {place.folder} does not answer on this machine"
        if wait > 0 and not options.quiet:  # it may be about to start, but nobody waits for minutes without a word
            say(f"{absent}; waiting {wait:g} s for it (--wait).")
        if not link.is_up(wait):
            raise flower.NetworkError(f"{absent}; start it: fedkeel network server {network}.")
    clients, terms = len(place.public_keys()), Terms(wait, quorum)
    words = f"{clients} sites over Flower"

    def one(run: config.Planned, stop: StopRequest, title: list[str], life: Life) -> NetworkRun:
        with ExitStack() as screen:

            def built(rounds: SiteRounds) -> None:
                if not options.quiet:
                    headline([*title, *identity(rounds), *experiments.told_of(run)])
                screen.enter_context(life)

            with RunLock(place.folder), link.run() as grid:
                carrier = GridTransport(link, grid, deadline, terms.largest)
                return run_over_sites(
                    run.experiment,
                    options.out / run.experiment.label,
                    carrier,
                    clients,
                    terms,
                    Listeners(life, stop),
                    options.resume,
                    options.data_dir,
                    options.allow_plugins,
                    built,
                    words,
                    module,
                )

    try:
        experiments.run_all(path, settings, options, one)
    finally:
        link.close()


def _checked(
    path: Path, settings: list[str], options: Options, wait: float, deadline: float, quorum: float
) -> list[config.Experiment]:
    """The experiments of a file; what cannot be run over sites is refused before anything is started."""
    for name, value in (("--wait", wait), ("--deadline", deadline), ("--quorum", quorum)):
        if not math.isfinite(value):
            raise invalid(name, "a finite number", value)
    found = config.read(path, settings, options.allow_plugins)
    for one in found:
        check_experiment(one, options.allow_plugins)
    return found


def identity(rounds: SiteRounds) -> list[str]:
    """What runs, in a few words each."""
    training = rounds.training
    share = f", {training.participation:.0%} a round" if training.participation < 1 else ", all in every round"
    return [
        rounds.algorithm.title,
        rounds.data().name,
        f"{rounds.executor.describe()}{share}",
        f"{rounds.task.d:,} parameters",
        *reports(rounds),
    ]


def run_locally(
    path: Path,
    settings: list[str],
    options: Options,
    sites: int,
    network: Path | None,
    wait: float,
    deadline: float,
    quorum: float,
) -> None:
    """Start a server and sites on this machine, run over them, and end every process that was started."""
    flower.require()
    first = _checked(path, settings, options, wait, deadline, quorum)[0]
    if first.data.name == SITES:
        hint = "Name a data set that can be dealt to the sites; those of a real network hold their own."
        raise invalid("data.name", "another one for `network local`", SITES, hint)
    if brings_clients(first.data.name):
        held = build.make_federation(first, options.data_dir).N
        if held != sites:
            raise InputError(f"{first.data.name} comes with {held} clients, got {sites} sites; give --sites {held}.")
    elif first.partition.clients != sites:
        raise InputError(
            f"partition.clients must be the number of sites, {sites}, got {first.partition.clients}; set it with "
            f"--set partition.clients={sites}, or give --sites {first.partition.clients}."
        )
    with ExitStack() as stack:
        if network is None:
            network = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedkeel-network-")))
            network = network / "network"
        if not network.exists():
            places.make(network, sites, ["127.0.0.1"], free_port(), free_port(), days=30)
        place = ServerPlace.at(network / "server")
        if len(place.public_keys()) != sites:
            raise InputError(f"{network} is a network of {len(place.public_keys())} sites, not of {sites}.")
        own = network / "experiment.toml"
        own.write_text(config.dump(first), encoding="utf-8")
        children = stack.enter_context(Children(network / "logs"))
        began = time.monotonic()
        fedkeel = [sys.executable, "-m", "fedkeel", "network"]
        children.start("server", [*fedkeel, "server", str(place.folder), "--bind", "127.0.0.1"])
        more = ["--allow-plugins"] if options.allow_plugins else []
        more += ["--data-dir", str(options.data_dir)] if options.data_dir else []
        for client in range(sites):
            folder = network / "sites" / f"client-{client}"
            children.start(f"client-{client}", [*fedkeel, "site", str(folder), "--data", str(own), *more])
        if not options.quiet:
            say(f"starting a server and {sites} sites on this machine; their logs are in {children.logs}", style="dim")
        _wait_until_joined(place, children, sites)
        if not options.quiet:
            say(f"all joined after {time.monotonic() - began:.0f} s", style="dim")
        run_all(path, settings, options, network, wait, deadline, quorum)


def _wait_until_joined(place: ServerPlace, children: Children, sites: int) -> None:
    flower.prepare(place.flower)
    from fedkeel.network.flower_link import Link

    link, until = Link(place), time.monotonic() + STARTS
    try:
        while True:
            for name in children.ended():
                raise flower.NetworkError(f"the process {name} ended: {children.last_words(name)}")
            if link.is_up() and sum(site.status == "online" for site in link.sites().values()) == sites:
                return
            if time.monotonic() > until:
                raise flower.NetworkError(f"server and sites did not start within {STARTS:.0f} s; see {children.logs}.")
            time.sleep(0.2)
    finally:
        link.close()


def show_status(network: Path, as_json: bool) -> None:
    """Who has joined, and which runs there are."""
    place = place_of(network)
    flower.prepare(place.flower)
    from fedkeel.network.flower_link import Link

    link = Link(place)
    try:
        up = link.is_up()
        sites = link.sites() if up else {}
        runs = link.runs() if up else []
    finally:
        link.close()
    rows = [
        {"client": client, "status": sites[client].status if client in sites else "unknown"}
        for client in place.public_keys()
    ]
    if as_json:
        running = sum(status != "finished" for _, status in runs)
        traffic = _traffic(place)
        print_json({"server": "up" if up else "down", "sites": rows, "running": running, "bytes": traffic})
        return
    say(f"server {'up' if up else 'down'}, {sum(status != 'finished' for _, status in runs)} runs going on")
    for way, count in _traffic(place).items():
        say(f"{count / 1e6:.1f} MB {way} through the gate since the server started")
    show_table(["client", "status"], [[row["client"], row["status"]] for row in rows])


def _traffic(place: ServerPlace) -> dict[str, int]:
    """Bytes that passed the gate, up from sites and down to them."""
    try:
        return {way: int(count) for way, count in json.loads(place.traffic.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError):
        return {}
