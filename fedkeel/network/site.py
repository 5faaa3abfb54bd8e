"""``fedkeel network site``: one client with its own data, for as long as the process lasts."""

from __future__ import annotations

import importlib
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from fedkeel.errors import InputError, shown
from fedkeel.learning.losses import as_loss
from fedkeel.network import flower, site_data
from fedkeel.network.client_half import ClientHalf
from fedkeel.network.places import SitePlace


def work(
    folder: Path,
    data: str,
    test: Path | None,
    targets: str,
    model: str | None,
    loss: str | None,
    allow_plugins: bool,
    data_dir: Path | None,
    say: Callable[[str], None],
) -> None:
    """Answer the server's letters until the process is asked to end."""
    place = SitePlace.at(folder)
    flower.prepare(place.folder / "flower")
    from fedkeel.network.flower_node import SuperNode, client_app

    torch.set_num_threads(1)  # the bits of a sum depend on how many threads share it
    client = place.settings.client
    own = site_data.read(data, client, test, targets, data_dir)
    module = None if model is None else module_of(model)
    half = ClientHalf(client, own, place.memory, module, as_loss(loss), allow_plugins)
    say(f"client {client} holds {len(own.train):,} samples of {own.name}")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    SuperNode(place, client_app(half), say, stop).run()
    say("stopped")


def module_of(source: str) -> nn.Module:
    """The model that a function of the operator's own makes."""
    module, _, name = source.partition(":")
    try:
        made = getattr(importlib.import_module(module), name)()
    except Exception as error:  # whatever a function of somebody's own may raise
        raise InputError(f"--model {shown(source)} cannot be made: {type(error).__name__}: {error}.") from error
    if not isinstance(made, nn.Module):
        raise InputError(f"--model {shown(source)} must return a torch.nn.Module, got {shown(made)}.")
    return made
