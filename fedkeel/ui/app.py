"""The pages and what is behind them."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from fedkeel.errors import FedkeelError, InputError
from fedkeel.ui import pages
from fedkeel.ui.catalogue import Catalogue, Line
from fedkeel.ui.guard import App, Guard, Guarded
from fedkeel.ui.listing import COLUMNS, PAGE, STATES, Query
from fedkeel.ui.pictures import Pictures

PATIENCE = 0.25
"""Seconds that a list waits for runs to be read; it is shown then with those that were."""
MOST_COMPARED = 12
MOST_NOTED = 12
"""Noted values that are drawn."""
MOST_LISTENERS = 40
"""Pages that follow runs at the same time."""
KINDS = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
    ".svg": "image/svg+xml",
}
CHARTS = {
    "accuracy": "Accuracy",
    "loss": "Loss",
    "drift": "Client drift",
    "traffic": "Traffic",
}
"""Charts of every run, by name."""
MAP = "drift-map"


@dataclass
class Site:
    """What the pages share."""

    folder: Path
    guard: Guard
    data_dir: Path | None = None
    read_only: bool = False
    """Nothing can be started or stopped."""
    stopping: Callable[[], bool] = lambda: False
    """Whether the server is about to end."""
    catalogue: Catalogue = field(init=False)
    pictures: Pictures = field(default_factory=Pictures)
    listeners: int = 0

    def __post_init__(self) -> None:
        self.catalogue = Catalogue(self.folder)
        self._templates = pages.environment()
        self._making = threading.Lock()
        self._views: Any = None
        self._launcher: Any = None

    # The two below import torch, which takes seconds that the list of runs does not wait for.
    @property
    def views(self) -> Any:
        with self._making:
            if self._views is None:
                from fedkeel.ui.view import Views

                self._views = Views(self.folder)
            return self._views

    @property
    def launcher(self) -> Any:
        with self._making:
            if self._launcher is None:
                from fedkeel.ui.launch import Launcher

                self._launcher = Launcher(self.folder, self.data_dir)
            return self._launcher

    @property
    def jobs(self) -> list[Any]:
        return [] if self._launcher is None else self._launcher.jobs

    def page(self, request: Request, name: str, status: int = 200, **values: Any) -> HTMLResponse:
        session = request.scope.get("session")
        common = {
            "folder": str(self.folder),
            "csrf": session.csrf if session else "",
            "read_only": self.read_only,
            "events": "",
            "version": "",
            "error": "",
        }
        return HTMLResponse(self._templates.get_template(name).render(common | values), status)

    def missing(self, request: Request, what: str) -> HTMLResponse:
        return self.page(request, "error.html", 404, title="Not found", sentence=what)

    def list_version(self) -> str:
        done = ",".join(str(job.code) for job in self.jobs)
        return f"{self.catalogue.seen.version}:{done}"


def build(site: Site) -> App:
    """The application, behind its guard."""
    routes = [
        Route("/", _answer(site, home)),
        Route("/login", _answer(site, login)),
        Route("/static/{name}", _answer(site, static)),
        Route("/events", _answer(site, events)),
        Route("/compare", _answer(site, compare)),
        Route("/compare.svg", _answer(site, compare_picture)),
        Route("/new", _answer(site, new), methods=["GET"]),
        Route("/new", _answer(site, start), methods=["POST"]),
        Route("/job/{number:int}", _answer(site, job)),
        Route("/run/{key}", _answer(site, run)),
        Route("/run/{key}/classes", _answer(site, classes)),
        Route("/run/{key}/stop", _answer(site, stop), methods=["POST"]),
        Route("/run/{key}/{name}.svg", _answer(site, picture)),
    ]
    return Guarded(Starlette(routes=routes), site.guard)


def _answer(site: Site, page: Callable[[Site, Request], Any]) -> Callable[[Request], Any]:
    """A page in a thread, because it reads files; what goes wrong with a run is a page with a sentence."""

    async def answer(request: Request) -> Response:
        try:
            if asyncio.iscoroutinefunction(page):
                found: Response = await page(site, request)
            else:
                found = await run_in_threadpool(page, site, request)
        except FedkeelError as error:
            return site.page(request, "error.html", 422, title="That did not work", sentence=str(error))
        except OSError as error:
            sentence = f"The system refused a file operation: {error.strerror or error}."
            return site.page(request, "error.html", 500, title="That did not work", sentence=sentence)
        return found

    return answer


def home(site: Site, request: Request) -> Response:
    """All runs."""
    seen = site.catalogue.look(PATIENCE)
    query = Query.of(request.query_params)
    chosen = query.choose(seen.lines)
    last = max(1, -(-len(chosen) // PAGE))
    query = replace(query, page=min(query.page, last))
    states: list[str] = [line.overview.state for line in seen.lines if line.overview is not None]
    return site.page(
        request,
        "home.html",
        events="/events",
        version=site.list_version(),
        query=query,
        seen=seen,
        shown=chosen[(query.page - 1) * PAGE : query.page * PAGE],
        found=len(chosen),
        last=last,
        per_page=PAGE,
        columns={name: heading for name, (heading, _) in COLUMNS.items()},
        states={state: states.count(state) for state in STATES},
        jobs=site.jobs,
        most=MOST_COMPARED,
    )


def run(site: Site, request: Request) -> Response:
    """One run."""
    line = _line(site, request)
    if line is None:
        return site.missing(request, f"There is no such run in {site.folder}; it may have been moved or deleted.")
    view = site.views.view(line.directory)
    history = view.history
    names, left = _noted(history.names)
    table = history.table()
    return site.page(
        request,
        "run.html",
        events=f"/events?run={line.key}",
        version=view.version,
        line=line,
        view=view,
        run=view.overview,
        reported=history.reported(),
        charts=_charts(view),
        maps=_maps(view, names),
        left=left,
        rows=table[-PAGE:][::-1],
        more_rows=max(0, len(table) - PAGE),
        metric_names=history.metric_names,
        clients=view.clients[:1000],
        per_page=PAGE,
        can_resume=view.overview.state not in ("running", "damaged") and bool(view.configuration),
    )


def _charts(view: Any) -> list[tuple[str, str, str]]:
    """Name, heading and description of the charts that a run has something for."""
    rounds, reported = view.history.rounds, view.history.reported()
    if not rounds and not view.history.measured:
        return []
    said = {
        "accuracy": f"Test accuracy by round: {reported}.",
        "loss": f"Loss by round; the local objective was {rounds[-1].train_loss:.4g} in round {rounds[-1].round}."
        if rounds
        else "Loss by round.",
        "drift": f"Mean distance of a client's model from the global one by round, last {rounds[-1].drift:.4g}."
        if rounds
        else "Drift by round.",
        "traffic": f"Megabytes sent in both directions so far, {view.overview.bytes / 1e6:,.1f} in all.",
    }
    return [(name, heading, said[name]) for name, heading in CHARTS.items()]


def _maps(view: Any, names: list[str]) -> list[tuple[str, str, str]]:
    found = []
    if any(one.drift == one.drift for one in view.did):
        said = "How far each client's model moved away from the global one, client by round."
        found.append((MAP, "Drift of each client", said))
    for at, name in enumerate(names):
        found.append((f"noted-{at}", name, f"What was noted as {name}, by round."))
    return found


def _noted(names: list[str]) -> tuple[list[str], list[str]]:
    """Which noted values are drawn, and which are not: what was measured first, where time went last."""
    ordered = sorted(names, key=lambda name: 0 if name.startswith("measure.") else 2 if name.startswith("time.") else 1)
    return ordered[:MOST_NOTED], ordered[MOST_NOTED:]


def picture(site: Site, request: Request) -> Response:
    """A chart of a run."""
    line, name = _line(site, request), str(request.path_params["name"])
    if line is None:
        return _no_picture()
    from fedkeel.ui import charts

    view = site.views.view(line.directory)
    history = view.history
    made: dict[str, Callable[[], Any]] = {
        "accuracy": lambda: charts.accuracy(history),
        "loss": lambda: charts.loss(history),
        "drift": lambda: charts.drift(history),
        "traffic": lambda: charts.traffic(history),
        MAP: lambda: charts.drift_map(view.did),
    }
    for at, noted in enumerate(_noted(history.names)[0]):
        made[f"noted-{at}"] = partial(charts.noted, history, noted)
    if name not in made:
        return _no_picture()
    return _svg(site.pictures.picture((line.key, view.version, name), _shade(request), made[name]))


def classes(site: Site, request: Request) -> Response:
    """Who holds how much of which class: the data are loaded for it, and must be those of the run."""
    line = _line(site, request)
    if line is None:
        return site.missing(request, "There is no such run.")
    from fedkeel.ui import holdings

    view = site.views.view(line.directory)
    found = holdings.holdings(view.directory, site.data_dir)
    shade = _shade(request)
    if request.query_params.get("picture"):
        key = (line.key, "classes", found.key)
        return _svg(site.pictures.picture(key, shade, lambda: found.chart))
    return site.page(request, "classes.html", line=line, found=found)


def compare(site: Site, request: Request) -> Response:
    """Several runs beside each other."""
    lines = _chosen(site, request)
    values: dict[str, Any] = {"lines": lines, "comparison": None, "warning": "", "target": 0.9}
    try:
        values["target"] = target = min(max(float(request.query_params.get("target", "0.9")), 0.0), 1.0)
    except ValueError:
        target = 0.9
    if len(lines) > MOST_COMPARED:
        values["warning"] = f"The first {MOST_COMPARED} of {len(lines)} runs are compared."
        lines = values["lines"] = lines[:MOST_COMPARED]
    if lines:
        from fedkeel.comparison.groups import compare_groups, read

        runs = [replace(read(line.directory), name=line.name) for line in lines]
        try:
            values["comparison"] = compare_groups(runs, target)
        except FedkeelError as error:
            values["error"] = str(error)
    return site.page(request, "compare.html", query=_keys(lines), **values)


def compare_picture(site: Site, request: Request) -> Response:
    """Their curves, seeds of the same settings as one."""
    from fedkeel.ui import charts

    places = [line.directory for line in _chosen(site, request)[:MOST_COMPARED]]
    key = ("compare", *((place, _version(place)) for place in places))
    return _svg(site.pictures.picture(key, _shade(request), lambda: charts.together(places)))


def new(site: Site, request: Request) -> Response:
    """The form for a run: a new one, one that goes on, or one that starts from another's state."""
    if site.read_only:
        return site.page(request, "error.html", 403, title="Only to look at", sentence=READ_ONLY)
    how, line = request.query_params.get("how", "start"), None
    if how in ("resume", "fork"):
        line = _line(site, request)
        if line is None:
            return site.missing(request, "There is no such run.")
    else:
        how = "start"
    return _form(site, request, how, line, _first_text(how, line), "")


def _first_text(how: str, line: Line | None) -> str:
    from contextlib import closing

    from fedkeel import changes, config
    from fedkeel.runs.store import Store
    from fedkeel.template import template

    if line is None:
        return template()
    with closing(Store.reading(line.directory)) as store:
        experiment = changes.stored(store.configuration(), line.directory)
    if how == "fork":
        experiment = experiment.model_copy(update={"name": f"{line.directory.name}-fork"})
    return config.dump(experiment)


def _form(site: Site, request: Request, how: str, line: Line | None, text: str, round: str, **values: Any) -> Response:
    kept: list[int] = []
    if line is not None and how == "fork":
        from contextlib import closing

        from fedkeel.runs.store import Store

        with closing(Store.reading(line.directory)) as store:
            kept = store.kept_rounds()[::-1]
    common = {"how": how, "line": line, "text": text, "kept": kept, "round": round, "runs": None, "excerpt": None}
    return site.page(request, "new.html", **(common | values))


def start(site: Site, request: Request) -> Response:
    """Check the form and, if that was asked for, start its process."""
    if site.read_only:
        return site.page(request, "error.html", 403, title="Only to look at", sentence=READ_ONLY)
    from fedkeel.ui.launch import planned

    form: dict[str, str] = request.scope["form"]
    text = form.get("experiment", "").replace("\r\n", "\n")  # which is how forms are sent
    how, round = form.get("how", "start"), form.get("round", "")
    line = _line(site, request, form.get("run", "")) if how in ("resume", "fork") else None
    if line is None and how in ("resume", "fork"):
        return site.missing(request, "There is no such run.")
    try:
        runs = planned(text)
        if form.get("action") != "start":
            return _form(site, request, how, line, text, round, runs=[run.experiment.label for run in runs])
        if how == "resume" and line is not None:
            made = site.launcher.resume(text, line.directory)
        elif how == "fork" and line is not None:
            made = site.launcher.fork(text, line.directory, _round(round))
        else:
            made = site.launcher.start(text)
    except FedkeelError as error:
        return _form(site, request, how, line, text, round, error=str(error), excerpt=excerpt(text, str(error)))
    return RedirectResponse(f"/job/{made.number}", 303)


READ_ONLY = "This page was started with --read-only: nothing can be started or stopped from it."


def _round(given: str) -> int | None:
    if not given:
        return None
    if not (given.isascii() and given.isdecimal() and len(given) < 10):
        raise InputError(f"the round to start from must be a whole number, got {given[:20]!r}.")
    return int(given)


def excerpt(text: str, complaint: str) -> tuple[int, str] | None:
    """The line that a complaint is about, with its number."""
    found = re.search(r"\bline (\d{1,7})\b", complaint)
    lines = text.split("\n")
    at = int(found[1]) if found else 0
    return (at, lines[at - 1]) if 0 < at <= len(lines) else None


def stop(site: Site, request: Request) -> Response:
    """Ask the process of a run to stop after its round."""
    if site.read_only:
        return site.page(request, "error.html", 403, title="Only to look at", sentence=READ_ONLY)
    line = _line(site, request)
    if line is None:
        return site.missing(request, "There is no such run.")
    site.launcher.stop(line.directory)
    return RedirectResponse(f"/run/{line.key}?asked=1", 303)


def job(site: Site, request: Request) -> Response:
    """A process that was started from the page."""
    found = next((one for one in site.jobs if one.number == request.path_params["number"]), None)
    if found is None:
        return site.missing(request, "No such process was started from this page, or an earlier start of it did.")
    seen = site.catalogue.look(PATIENCE)
    places = {found.out / label for label in found.labels}
    lines = [line for line in seen.lines if line.directory.absolute() in places]
    return site.page(
        request, "job.html", events="/events", version=site.list_version(), job=found, lines=lines, code=found.code
    )


def login(site: Site, request: Request) -> Response:
    return site.page(request, "login.html", wrong=bool(request.query_params.get("wrong")))


def static(site: Site, request: Request) -> Response:
    """A file of the page."""
    name = str(request.path_params["name"])
    if name not in {path.name for path in pages.STATIC.iterdir()}:
        return PlainTextResponse("There is no such file.", 404)
    path = pages.STATIC / name
    headers = {"cache-control": "private, max-age=31536000, immutable"} if request.query_params.get("v") else {}
    return Response(path.read_bytes(), media_type=KINDS[path.suffix], headers=headers)


async def events(site: Site, request: Request) -> Response:
    """Tells a page whenever something that it shows has changed (server-sent events); what, the page asks itself."""
    key = request.query_params.get("run", "")
    directory = await run_in_threadpool(site.catalogue.directory, key) if key else None
    if key and directory is None:
        return PlainTextResponse("There is no such run.", 404)
    if site.listeners >= MOST_LISTENERS:
        return PlainTextResponse("Too many pages follow runs already; close some.", 503)
    stream = _changes(site, request, directory)
    return StreamingResponse(stream, media_type="text/event-stream")


async def _changes(site: Site, request: Request, directory: Path | None) -> AsyncIterator[str]:
    site.listeners += 1
    try:
        before, quiet = "", 0.0
        while not site.stopping() and not await request.is_disconnected():
            began = time.monotonic()
            if directory is None:
                await run_in_threadpool(site.catalogue.look, 1.0)
                now = site.list_version()
            else:
                now = await run_in_threadpool(_version, directory)
            if now != before:
                yield f"event: changed\ndata: {now}\n\n"
                before, quiet = now, 0.0
            elif quiet > 10:
                yield ": still here\n\n"
                quiet = 0.0
            # Looking must not keep a processor busy that trains.
            pause = max(1.0, 4 * (time.monotonic() - began))
            quiet += pause
            while pause > 0 and not site.stopping():
                await asyncio.sleep(min(pause, 0.25))
                pause -= 0.25
    finally:
        site.listeners -= 1


def _version(directory: Path) -> str:
    from fedkeel.ui.view import version

    return version(directory)


def _line(site: Site, request: Request, key: str = "") -> Line | None:
    """The run that an address or a form names; only keys of the folder's own runs lead anywhere."""
    key = key or str(request.path_params.get("key") or request.query_params.get("run", ""))
    directory = site.catalogue.directory(key)
    if directory is None:
        return None
    known = next((line for line in site.catalogue.seen.lines if line.key == key), None)
    return known or Line(key, directory, directory.name, None)


def _chosen(site: Site, request: Request) -> list[Line]:
    keys = dict.fromkeys(request.query_params.getlist("run"))
    found = [_line(site, request, key) for key in list(keys)[:1000] if key]
    return [line for line in found if line is not None]


def _keys(lines: list[Line]) -> str:
    return "&".join(f"run={line.key}" for line in lines)


def _shade(request: Request) -> Any:
    return "dark" if request.query_params.get("shade") == "dark" else "light"


def _svg(drawn: bytes | None) -> Response:
    if drawn is None:
        return _no_picture()
    return Response(drawn, media_type="image/svg+xml")


def _no_picture() -> Response:
    return PlainTextResponse("There is nothing to draw.", 404)
