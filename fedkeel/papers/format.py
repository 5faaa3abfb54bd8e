"""What a paper did and what it printed, read from ``<paper>.toml``: settings, methods, tables and figures.

Everything about a paper is data. Reading checks that names fit together; whether a setting can be run is for
``plan`` to find out, which makes experiments of them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from pydantic import ConfigDict, Field, model_validator

from fedkeel.algorithms.validate import Settings, checked
from fedkeel.errors import InputError, invalid, unknown
from fedkeel.papers.published import MISSING, Published, parsed

Scale = Literal["smoke", "reduced", "full"]
SCALES: tuple[Scale, ...] = ("smoke", "reduced", "full")
METRICS = ("accuracy", "loss", "train_accuracy", "train_loss")
"""Series of a record: on the test set, and on all clients' training samples."""
Metric = Literal["accuracy", "loss", "train_accuracy", "train_loss"]
Table = dict[str, Any]
NEEDS = ("gpu", "data", "weights")
"""What a setting may need: ``gpu``, or ``data:cifar100``, ``weights:…``."""
_SECTIONS = ("data", "partition", "model", "training", "evaluation", "faults")
_IDENTITY = {"data": "name", "partition": "rule", "model": "name"}
"""The field of a section whose change makes the section another one, to which the old fields do not belong."""


class Part(Settings):
    """Something of a paper; lists become tuples, so that it can be shared."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Overrides(Part):
    """Sections of an experiment that take the place of a setting's, wholly or field by field."""

    data: Table = {}
    partition: Table = {}
    model: Table = {}
    training: Table = {}
    evaluation: Table = {}

    def sections(self) -> dict[str, Table]:
        """Those that say something."""
        return {name: getattr(self, name) for name in _SECTIONS if getattr(self, name, None)}


class Reduced(Overrides):
    """What is replaced at a smaller scale."""

    says: str = ""
    """In words what was reduced."""


class Setting(Part):
    """One experiment of a paper, without its algorithm, after everything inherited from its base."""

    name: str
    bases: tuple[str, ...] = ()
    """The settings that it inherits from, the nearest last."""
    where: str
    """Where in the paper, or in its published program, it stands."""
    open: tuple[str, ...] = ()
    """What the paper leaves open, and what stands here instead."""
    needs: tuple[str, ...] = ()
    data: Table = {}
    partition: Table = {}
    model: Table = {}
    training: Table = {}
    evaluation: Table = {}
    faults: Table = {}
    sets: Table = {}
    """Options of the prediction sets that are measured after the last round, such as ``{ method = "raps" }``."""
    reduced: Reduced | None = None
    smoke: Reduced | None = None

    def sections(self) -> dict[str, Table]:
        """The tables of an experiment file."""
        return {name: dict(getattr(self, name)) for name in _SECTIONS if getattr(self, name)}


class Change(Overrides):
    """What a method takes in place of the setting's own."""

    params: Table = {}


class Method(Change):
    """A line of the tables: an algorithm with its parameters."""

    id: str
    title: str
    algorithm: str
    work_of: str | None = None
    """The method whose number of local steps, in the same setting and seed, this one shares among its clients."""
    open: tuple[str, ...] = ()
    rival: bool = True
    """False: a yardstick that nobody competes with, such as training in one place."""
    at: dict[str, Change] = {}
    """By setting; for those that inherit from it as well."""
    smoke: Change | None = None

    def changes(self, setting: Setting, scale: Scale) -> list[Change]:
        """What it changes in a setting, the last word last."""
        there = [self.at[name] for name in (*setting.bases, setting.name) if name in self.at]
        return [self, *there, *([self.smoke] if scale == "smoke" and self.smoke else [])]


class BestOf(Part):
    """A target that another method sets: its best value in the same column and seed."""

    best_of: str


class Measure(Part):
    """What is read off a record."""

    kind: Literal["rounds_to", "best", "final", "at", "set_size"]
    metric: Metric = "accuracy"
    target: float | BestOf | None = None
    round: int | None = Field(None, ge=1)
    coverage: float | None = Field(None, gt=0, lt=1)
    """That prediction sets are asked for, where their mean size is wanted."""
    scale: float | None = Field(None, gt=0)
    """printed = scale × ours; absent: 100 for accuracies (papers print percent), 1 for everything else."""

    @model_validator(mode="after")
    def _complete(self) -> Measure:
        if (self.kind == "rounds_to") != (self.target is not None):
            raise ValueError("given a target if, and only if, its kind is rounds_to")
        if (self.kind == "at") != (self.round is not None):
            raise ValueError("given a round if, and only if, its kind is at")
        if (self.kind == "set_size") != (self.coverage is not None):
            raise ValueError("given a coverage if, and only if, its kind is set_size")
        return self

    @property
    def printed_scale(self) -> float:
        """printed = this × ours."""
        if self.scale is not None:
            return self.scale
        return 100.0 if self.kind not in ("rounds_to", "set_size") and self.metric.endswith("accuracy") else 1.0

    @property
    def lower_is_better(self) -> bool:
        """Rounds, losses and prediction sets should be small, accuracies large."""
        return self.kind in ("rounds_to", "set_size") or self.metric.endswith("loss")

    def __str__(self) -> str:
        if self.coverage is not None:
            return f"mean size of sets with a coverage of {100 * self.coverage:g} %"
        what = self.metric.replace("_", " ")
        if self.kind == "rounds_to":
            if isinstance(self.target, BestOf):
                return f"rounds to {self.target.best_of}'s best {what}"
            target = f"{self.target:g}" if "loss" in what or self.target is None else f"{100 * self.target:g} %"
            return f"rounds to {what} {target}"
        return f"{what} at round {self.round}" if self.kind == "at" else f"{self.kind} {what}"


class Line(Part):
    """A curve, a bar or a cell: a method in a setting."""

    setting: str
    method: str
    label: str = ""
    published: Published = MISSING


class Column(Part):
    """A column of a table: one setting, one or several numbers for every method."""

    id: str
    title: str
    setting: str
    measures: tuple[Measure, ...] = Field(min_length=1)
    methods: tuple[str, ...] = ()
    """Those of the exhibit that were run in this column."""
    published: dict[str, tuple[Published, ...]] = {}
    """By method, one for every measure."""
    seeds: int | None = Field(None, ge=1)

    @property
    def lines(self) -> tuple[Line, ...]:
        """One for every method."""
        return tuple(Line(setting=self.setting, method=method, label=method) for method in self.methods)

    def printed(self, method: str) -> tuple[Published, ...]:
        """What the paper prints for a method, one for every measure."""
        return self.published.get(method, (MISSING,) * len(self.measures))


class Panel(Part):
    """A panel of a figure."""

    id: str
    title: str
    """In an exhibit of kind ``values`` it ends with the symbol of its axis: ``CNN, MNIST: η τ̄ L``."""
    setting: str | None = None
    methods: tuple[str, ...] = ()
    metric: Metric = "accuracy"
    """Of curves."""
    method: str | None = None
    value: str | None = None
    """Of an exhibit of kind ``values``: the name under which the algorithm records it."""
    measure: Measure | None = None
    """Of bars."""
    lines: tuple[Line, ...] = ()
    """Curves or bars of several settings; else one for every method in ``setting``."""
    rounds: int | None = Field(None, ge=1)
    """How many rounds are shown."""
    log: bool = False
    seeds: int | None = Field(None, ge=1)


class Claim(Part):
    """What a paper concludes from an exhibit, as far as it can be checked."""

    says: str
    check: Literal["wins", "fastest", "order", "above", "below"]
    panel: int | None = Field(None, ge=1)
    """Counted from 1; absent: every panel."""
    column: str | None = None
    method: str | None = None
    methods: tuple[str, ...] = ()
    """From best to worst (``order``), or those to compare with; absent: all."""
    measure: Measure | None = None
    target: float | None = None
    """Of ``fastest``: first to reach it."""
    bound: float | None = None
    than: str | None = None
    """The method that ``above`` and ``below`` compare with, where there is no ``bound``."""
    value: str | None = None
    """A recorded value of the algorithm that ``above`` and ``below`` look at, in every round."""


class Exhibit(Part):
    """A table or figure."""

    id: str
    """``feddc.table1``."""
    where: str
    kind: Literal["table", "curves", "bars", "values", "sets", "illustration", "toy"]
    title: str
    shows: str
    """What a reader should see, or what the paper claims from it."""
    methods: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    seeds: int = Field(1, ge=1)
    """How many are run unless a column says otherwise."""
    layout: tuple[int, int] | None = None
    """Rows and columns of panels."""
    columns: tuple[Column, ...] = ()
    panels: tuple[Panel, ...] = ()
    claims: tuple[Claim, ...] = ()
    params: Table = {}
    """Of a toy."""

    @property
    def paper(self) -> str:
        """The name of its paper's file."""
        return self.id.partition(".")[0]

    @property
    def parts(self) -> tuple[Column | Panel, ...]:
        """Columns of a table, panels of a figure: what ``--only`` chooses from."""
        return self.columns or self.panels


class Paper(Part):
    """A paper as data."""

    id: str
    title: str
    authors: str
    venue: str
    own: tuple[str, ...] = Field(min_length=1)
    """The algorithms that it proposes, the one with its name first."""
    base: str | None = None
    """The method that speed-ups are over."""
    settings: dict[str, Setting]
    methods: dict[str, Method]
    exhibits: dict[str, Exhibit]
    """By what follows the dot of their id: ``table1``."""
    smoke: Reduced

    @property
    def short(self) -> str:
        """The name of its first own method, by which a paper is known."""
        return next(one.title for one in self.methods.values() if one.algorithm == self.own[0])

    @property
    def drawn_values(self) -> tuple[str, ...]:
        """Names of the values that its figures show."""
        panels = [panel for exhibit in self.exhibits.values() for panel in exhibit.panels]
        return tuple(dict.fromkeys(panel.value for panel in panels if panel.value is not None))


@cache
def papers() -> dict[str, Paper]:
    """All papers, by the names of their files."""
    folder = files(__package__)
    names = [path.name for path in folder.iterdir() if path.name.endswith(".toml")]
    return {
        name.removesuffix(".toml"): read(name.removesuffix(".toml"), (folder / name).read_text(encoding="utf-8"))
        for name in sorted(names)
    }


def exhibits() -> dict[str, Exhibit]:
    """All tables and figures, by id."""
    return {exhibit.id: exhibit for paper in papers().values() for exhibit in paper.exhibits.values()}


def exhibit(name: str) -> Exhibit:
    """One table or figure, such as ``feddc.table1``."""
    known = exhibits()
    if name not in known:
        raise unknown("table or figure", name, list(known), "" if "." in name else "`fedkeel paper list` names them.")
    return known[name]


def read(name: str, text: str) -> Paper:
    """A paper from the text of its file; an error names the file and the key."""
    try:
        return _Reader(name, tomllib.loads(text)).paper()
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{name}.toml is not valid TOML: {error}.") from None


def merged(below: Mapping[str, Any], above: Mapping[str, Any], section: str = "") -> Table:
    """One table over another, field by field; a section that gets another identity is replaced whole."""
    identity = _IDENTITY.get(section)
    if identity and above.get(identity, below.get(identity)) != below.get(identity):
        return dict(above)
    table = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(table.get(key), Mapping)
        table[key] = merged(table[key], value, key) if both else value
    return table


def sections_of(paper: Paper, setting: str, method: str, scale: Scale = "full") -> Table:
    """The tables of an experiment file: of a setting, at a scale, with a method."""
    from fedkeel.data.sources import brings_clients

    chosen, line = paper.settings[setting], paper.methods[method]
    table: Table = chosen.sections()
    if scale == "reduced" and chosen.reduced is not None:
        table = merged(table, chosen.reduced.sections())
    if scale == "smoke":
        for smaller in (paper.smoke, *([chosen.smoke] if chosen.smoke else [])):
            table = _replaced(table, smaller.sections())
    params: Table = {}
    for change in line.changes(chosen, scale):
        table = merged(table, change.sections())
        params |= change.params
    if brings_clients(str(table.get("data", {}).get("name", ""))):
        table.pop("partition", None)
    table.setdefault("training", {})
    return {**table, "training": dict(table["training"]), "algorithm": {"name": line.algorithm, **params}}


def _replaced(table: Table, smaller: dict[str, Table]) -> Table:
    """Data, partition and model are others at smoke scale; the rest is changed field by field."""
    result = dict(table)
    for section, values in smaller.items():
        whole = section in ("data", "partition", "model")
        result[section] = dict(values) if whole else merged(result.get(section, {}), values)
    if {"epochs", "steps"} <= result.get("training", {}).keys():
        kept = "epochs" if any("epochs" in one.get("training", {}) for one in [smaller]) else "steps"
        result["training"] = {k: v for k, v in result["training"].items() if k == kept or k not in ("epochs", "steps")}
    return result


class _Reader:
    """Goes through the tables of one file."""

    def __init__(self, name: str, table: Table) -> None:
        self._name, self._table = name, table

    def _at(self, *path: str | int) -> str:
        return f"{self._name}.toml: {'.'.join(map(str, path))}"

    def _tables(self, holder: Table, *path: str | int) -> dict[str, Table]:
        found = holder.get(str(path[-1]), {})
        if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
            raise invalid(self._at(*path), "a table of named tables", found)
        return found

    def paper(self) -> Paper:
        known = {"paper", "settings", "methods", "exhibits", "smoke"}
        for key in self._table.keys() - known:
            raise unknown(f"table in {self._name}.toml", key, sorted(known))
        head = self._table.get("paper", {})
        settings = {name: self._setting(name) for name in self._tables(self._table, "settings")}
        methods = {name: self._method(name, settings) for name in self._tables(self._table, "methods")}
        for method in methods.values():
            if method.work_of is not None:
                self._known("method", method.work_of, methods, "methods", method.id, "work_of")
        if "base" in head:
            self._known("method", head["base"], methods, "paper", "base")
        exhibits = {
            name: self._exhibit(name, table, settings, methods)
            for name, table in self._tables(self._table, "exhibits").items()
        }
        smoke = checked(self._at("smoke"), Reduced, self._table.get("smoke", {}))
        whole = {"settings": settings, "methods": methods, "exhibits": exhibits, "smoke": smoke, "id": self._name}
        for key in head.keys() & whole.keys():
            raise unknown(f"field in {self._at('paper')}", key, ["title", "authors", "venue", "own", "base"])
        return checked(self._at("paper"), Paper, head | whole)

    def _setting(self, name: str) -> Setting:
        table = self._inherited(name, [])
        if "bases" in self._tables(self._table, "settings")[name]:
            raise unknown(f"field in {self._at('settings', name)}", "bases", ["base"])
        setting = checked(self._at("settings", name), Setting, table | {"name": name})
        for need in setting.needs:
            kind, colon, which = need.partition(":")
            if kind not in NEEDS or (kind == "gpu") == bool(colon) or (colon and not which):
                allowed = "gpu, data:NAME or weights:NAME"
                raise invalid(self._at("settings", name, "needs"), allowed, need)
        if setting.reduced is not None and not setting.reduced.says:
            raise invalid(self._at("settings", name, "reduced.says"), "what was reduced, in words", "")
        return setting

    def _inherited(self, name: str, below: list[str]) -> Table:
        """A setting's table over its base's; what is open adds up."""
        known = self._tables(self._table, "settings")
        if name in below:
            raise InputError(f"{self._at('settings', name, 'base')} leads back to itself: {' → '.join(below)}.")
        table = dict(known[name])
        base = table.pop("base", None)
        if base is None:
            return table | {"bases": []}
        self._known("setting", base, known, "settings", name, "base")
        under = self._inherited(base, [*below, name])
        both = [*under.get("open", []), *table.get("open", [])]
        result = merged(under, table)
        for scale in ("reduced", "smoke"):
            if scale in under and scale in table:
                result[scale] = merged(under[scale], table[scale])
        return result | {"bases": [*under["bases"], base]} | ({"open": both} if both else {})

    def _method(self, name: str, settings: Iterable[str]) -> Method:
        table = {"id": name, "title": name, "algorithm": name} | self._tables(self._table, "methods")[name]
        for setting in table.get("at", {}):
            self._known("setting", setting, settings, "methods", name, "at")
        method = checked(self._at("methods", name), Method, table)
        for change in (method, *method.at.values(), *([method.smoke] if method.smoke else [])):
            for key in ("rounds", "until"):
                if key in change.training:
                    hint = "All methods of a setting have the same; change the setting."
                    raise invalid(self._at("methods", name, "training", key), "absent", change.training[key], hint)
        return method

    def _exhibit(self, name: str, table: Table, settings: dict[str, Setting], methods: dict[str, Method]) -> Exhibit:
        path = ("exhibits", name)
        plain = {key: value for key, value in table.items() if key not in ("columns", "panels")}
        listed = tuple(plain.get("methods", ()))
        columns = [
            self._column(one, listed, settings, methods, *path, "columns", number)
            for number, one in self._list(table, *path, "columns")
        ]
        panels = [
            self._panel(one, number, plain, settings, methods, *path, "panels", number)
            for number, one in self._list(table, *path, "panels")
        ]
        for method in listed:
            self._known("method", method, methods, *path, "methods")
        exhibit = checked(
            self._at(*path), Exhibit, plain | {"id": f"{self._name}.{name}", "columns": columns, "panels": panels}
        )
        self._whole(exhibit, *path)
        return exhibit

    def _list(self, table: Table, *path: str | int) -> Iterable[tuple[int, Table]]:
        found = table.get(str(path[-1]), [])
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise invalid(self._at(*path), "a list of tables", found)
        return enumerate(found, start=1)

    def _column(
        self,
        table: Table,
        listed: tuple[str, ...],
        settings: dict[str, Setting],
        methods: dict[str, Method],
        *path: str | int,
    ) -> Column:
        if "setting" not in table:
            raise InputError(f"{self._at(*path)} has no setting; name one of {', '.join(settings)}.")
        plain = {"methods": listed} | {key: value for key, value in table.items() if key != "published"}
        column = checked(self._at(*path), Column, plain)
        self._known("setting", column.setting, settings, *path, "setting")
        for method in column.methods:
            self._known("method", method, methods, *path, "methods")
        for number, measure in enumerate(column.measures, start=1):
            if isinstance(measure.target, BestOf):
                self._known("method of the column", measure.target.best_of, column.methods, *path, "measures", number)
        printed = {}
        for method, given in table.get("published", {}).items():
            where = self._at(*path, "published", method)
            self._known("method of the column", method, column.methods, *path, "published")
            values = given if isinstance(given, list) else [given]
            if len(values) != len(column.measures):
                raise invalid(where, f"{len(column.measures)} values, one for every measure", given)
            printed[method] = tuple(parsed(where, value) for value in values)
        return column.model_copy(update={"published": printed})

    def _panel(
        self,
        table: Table,
        number: int,
        exhibit: Table,
        settings: dict[str, Setting],
        methods: dict[str, Method],
        *path: str | int,
    ) -> Panel:
        plain = {"id": str(number)} | {key: value for key, value in table.items() if key not in ("lines", "bars")}
        lines = [
            checked(self._at(*path, "lines", i), Line, self._read_published(one, *path, "lines", i))
            for i, one in enumerate([*table.get("lines", []), *table.get("bars", [])], start=1)
        ]
        panel = checked(self._at(*path), Panel, plain)
        if panel.setting is not None:
            chosen = [panel.method] if panel.method else [*(panel.methods or exhibit.get("methods", []))]
            lines += [Line(setting=panel.setting, method=method) for method in chosen]
        elif not lines:
            raise InputError(f"{self._at(*path)} has no setting and no lines; give one of them.")
        for line in lines:
            self._known("setting", line.setting, settings, *path, "setting")
            self._known("method", line.method, methods, *path, "method")
        named = [
            line if line.label else line.model_copy(update={"label": methods[line.method].title}) for line in lines
        ]
        return panel.model_copy(
            update={"lines": tuple(named), "methods": tuple(dict.fromkeys(x.method for x in named))}
        )

    def _read_published(self, table: Table, *path: str | int) -> Table:
        if "published" not in table:
            return table
        return table | {"published": parsed(self._at(*path, "published"), table["published"])}

    def _whole(self, exhibit: Exhibit, *path: str | int) -> None:
        """What only the exhibit as a whole can say."""
        drawn = ("curves", "bars", "values", "sets")
        wanted = "columns" if exhibit.kind == "table" else "panels" if exhibit.kind in drawn else None
        for kind in ("columns", "panels"):
            if bool(getattr(exhibit, kind)) != (kind == wanted):
                allowed = "given" if kind == wanted else "absent"
                raise invalid(
                    self._at(*path, kind),
                    f"{allowed} in an exhibit of kind {exhibit.kind}",
                    list(getattr(exhibit, kind))[:1],
                )
        names = [part.id for part in exhibit.parts]
        if len(set(names)) < len(names):
            raise invalid(self._at(*path), "given columns or panels with ids of their own", names)
        for number, panel in enumerate(exhibit.panels, start=1):
            for kind, field in (("bars", "measure"), ("values", "value")):
                if (exhibit.kind == kind) != (getattr(panel, field) is not None):
                    allowed = "given" if exhibit.kind == kind else "absent"
                    where = self._at(*path, "panels", number, field)
                    raise invalid(where, f"{allowed} in a panel of {exhibit.kind}", getattr(panel, field))
        if exhibit.layout is not None and exhibit.layout[0] * exhibit.layout[1] < len(exhibit.panels):
            raise invalid(
                self._at(*path, "layout"), f"rows and columns for {len(exhibit.panels)} panels", list(exhibit.layout)
            )
        for number, claim in enumerate(exhibit.claims, start=1):
            self._claim(claim, exhibit, *path, "claims", number)

    def _claim(self, claim: Claim, exhibit: Exhibit, *path: str | int) -> None:
        if claim.panel is not None and claim.panel > len(exhibit.panels):
            raise invalid(self._at(*path, "panel"), f"at most {len(exhibit.panels)}", claim.panel)
        if claim.column is not None:
            self._known("column", claim.column, [column.id for column in exhibit.columns], *path, "column")
        there = {line.method for part in exhibit.parts for line in part.lines}
        for field in ("method", "than"):
            if getattr(claim, field) is not None:
                self._known("method of the exhibit", getattr(claim, field), there, *path, field)
        for method in claim.methods:
            self._known("method of the exhibit", method, there, *path, "methods")

    def _known(self, kind: str, name: object, known: Iterable[str], *path: str | int) -> None:
        there = sorted(known)
        if name not in there:
            raise InputError(f"{self._at(*path)}: {unknown(kind, name, there)}")
