"""The pages about the papers are made from what they printed and from records, whether there are any or not."""

import math
import os
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from docs.pages import papers as pages
from docs.pages import pictures
from fedkeel.errors import DataError
from fedkeel.papers.current import resolved
from fedkeel.papers.figures import draw
from fedkeel.papers.format import Measure, Scale, papers
from fedkeel.papers.measures import SWING_OVER
from fedkeel.papers.plan import planned
from fedkeel.papers.records import Record, Records
from fedkeel.papers.rules import margins
from fedkeel.papers.verdicts import verdict

EMPTY = Records(Path("results"), {})


def of(*made: Record) -> Records:
    return Records(Path("results"), {(r.paper, r.setting, r.method, r.scale, r.seed): r for r in made})


def run_of(paper: str, setting: str, method: str, reached: int, seed: int = 0, scale: Scale = "full") -> Record:
    """A run such as the paper's file describes that has 99 % from a round on."""
    run = planned(papers()[paper], setting, method, scale, seed)
    rounds = tuple(range(1, run.rounds + 1))
    accuracy = tuple(0.5 if r < reached else 0.99 for r in rounds)
    return Record(
        paper=paper,
        setting=setting,
        scale=scale,
        method=method,
        seed=seed,
        key=run.key,
        experiment=resolved(run.experiment),
        fedkeel="0.1.0",
        commit="0123456789abcdef",
        rounds=run.rounds,
        ended="finished",
        series={"accuracy": (rounds, accuracy), "loss": (rounds, accuracy)},
        steps=1,
        bytes_up=1,
        bytes_down=1,
        seconds=1800.0,
    )


def test_what_people_write_about_a_paper_takes_its_numbers_from_records() -> None:
    """FedDC with 99 % from round 41 on, where 62 rounds are printed; SCAFFOLD was not run."""
    found = [verdict("feddc.table1", of(run_of("feddc", "mnist-d2-15", "feddc", 41)))]
    text = (
        "{ours: table1 mnist-d2-15 feddc} of {printed: table1 mnist-d2-15 feddc}, {ours: table1 mnist-d2-15 scaffold}"
    )
    assert pages.with_numbers(text, found) == "41 of 62, –"
    assert pages.with_numbers("{ours: table1 nowhere feddc}", found) == "–"


@pytest.mark.parametrize("paper", papers())
def test_every_number_that_is_written_about_a_paper_is_on_record(paper: str) -> None:
    text = (pages.WRITTEN / f"{paper}.md").read_text(encoding="utf-8")
    known = Records.of(pages.RECORDS)
    found = [verdict(one.id, known) for one in papers()[paper].exhibits.values()]
    for place in pages.NUMBER.finditer(text):
        assert pages.with_numbers(place.group(), found) != pages.MISSING, place.group()
    assert "{" not in pages.with_numbers(text, found)


@pytest.mark.parametrize(("setting", "printed"), [("svm", 86.87), ("cnn-mnist", 93.43)])
def test_central_training_is_near_print_after_a_fifth_of_fedvecas_steps(setting: str, printed: float) -> None:
    """What FedVeca's page says: within a point in round 20 of 100, and further away at the end."""
    found = Records.of(pages.RECORDS).seeds("fedveca", setting, "centralised")
    assert found
    for record in found:
        accuracy = dict(zip(*record.series["accuracy"], strict=True))
        early, late = (abs(100 * (accuracy[round] or 0.0) - printed) for round in (20, 100))
        assert early < min(1.0, late)


def test_the_price_of_fedvecas_rounds_is_on_record() -> None:
    """What its page says: about thirty times FedAvg's time, for as many steps."""
    known = Records.of(pages.RECORDS)
    veca, avg = (known.get("fedveca", "cnn-mnist", method, 0) for method in ("fedveca", "fedavg"))
    assert veca is not None
    assert avg is not None
    assert 25 < veca.seconds / avg.seconds < 35
    assert veca.steps == pytest.approx(avg.steps, rel=0.1)


def test_what_is_said_of_momentum_on_cifar10_is_on_record() -> None:
    """Means over the last ten evaluations: the two with momentum are above the first loss, FedGVR is the lowest."""
    known = Records.of(pages.RECORDS)
    late = {}
    for method in ("fedavg", "fedprox", "fedgm", "fedgvr", "fedgvrgm"):
        record = known.get("fedgvrgm", "cifar10-a05", method, 0, "reduced")
        assert record is not None
        losses = [loss for loss in record.series["train_loss"][1] if loss is not None]
        late[method] = fmean(losses[-10:])
        assert (late[method] > losses[0]) == (method in ("fedgm", "fedgvrgm"))
    assert min(late, key=lambda method: late[method]) == "fedgvr"


@pytest.fixture(scope="module")
def empty() -> dict[str, str]:
    return {path.name: text for path, text in pages.pages(EMPTY).items()}


def test_without_records_everything_is_not_run_and_nothing_is_left_out(empty: dict[str, str]) -> None:
    assert empty.keys() == {"README.md", *(f"{name}.md" for name in papers())}
    for name, paper in papers().items():
        text = empty[f"{name}.md"]
        for exhibit in paper.exhibits.values():
            assert f"## {exhibit.where}: {exhibit.title}" in text
        cells = sum(len(verdict(exhibit.id, EMPTY).cells) for exhibit in paper.exhibits.values())
        assert f"0 not comparable, {cells} not run" in text
        parts = [part for exhibit in paper.exhibits.values() for part in exhibit.parts]
        for opened in {one for part in parts for line in part.lines for one in paper.settings[line.setting].open}:
            assert opened in text


def test_only_what_needs_no_record_has_a_picture_then(empty: dict[str, str]) -> None:
    toys = [exhibit for paper in papers().values() for exhibit in paper.exhibits.values() if exhibit.kind == "toy"]
    shown = [name for text in empty.values() for name in re.findall(r"\(pictures/(.*?)\)", text)]
    assert shown == [pages.picture(toy).name for toy in toys]


def test_every_picture_that_a_page_shows_is_there() -> None:
    for page in pages.FOLDER.glob("*.md"):
        for name in re.findall(r"\(pictures/(.*?)\)", page.read_text(encoding="utf-8")):
            assert (pages.PICTURES / name).stat().st_size > 1000, f"{page.name}: python docs/make_pages.py draws {name}"


def test_what_is_noted_of_a_number_is_a_sentence() -> None:
    """A loss of round 500 is asked for, and the smaller scale has 100 rounds: that is said behind the verdict."""
    text = (pages.FOLDER / "fedgvrgm.md").read_text(encoding="utf-8")
    assert ". In round 100, the last of this scale, for round 500. |" in text


def test_tables_are_whole(empty: dict[str, str]) -> None:
    """Every row of a table has as many cells as its head."""
    for text in empty.values():
        for block in re.findall(r"(?:^\|.*\|\n?)+", text, re.MULTILINE):
            widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.strip().splitlines()}
            assert len(widths) == 1, block


def test_records_turn_into_numbers_and_verdicts() -> None:
    made = [run_of("feddc", "mnist-d2-15", "feddc", 62, seed) for seed in range(3)]
    known = of(*made, run_of("feddc", "mnist-d2-15", "scaffold", 10))
    text = pages.pages(known)[pages.FOLDER / "feddc.md"]
    assert "4 runs on record, 2.0 hours of one core, by fedkeel 0.1.0 (0123456789)." in text
    assert re.search(r"\| FedDC \| 62 \| 62 ± 0 \| .* \| 3 \| reproduced \|", text)
    assert re.search(r"\| SCAFFOLD \| 72 \| 10 \| .* \| 1 \| not reproduced \|", text)
    assert "Best in print: FedDC; best here, of the 2 that were run: SCAFFOLD." in text


def test_pictures_are_drawn_for_what_is_on_record_and_old_ones_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PICTURES", tmp_path)
    (tmp_path / "feddc-figure99.png").touch()
    line = papers()["feddc"].exhibits["figure3"].panels[0].lines[0]
    drawn = pages.draw_pictures(of(run_of("feddc", line.setting, line.method, 60)))
    assert set(tmp_path.iterdir()) == set(drawn)
    assert tmp_path / "feddc-figure3.png" in drawn


def test_published_pictures_show_the_records() -> None:
    """Without drawing them: each keeps the digest of its drawing."""
    known = Records.of(pages.RECORDS)
    for paper in papers().values():
        for exhibit in paper.exhibits.values():
            if pages.has_picture(paper, exhibit, known):
                path = pages.picture(exhibit)
                expected = pictures.digest_of(draw(paper, exhibit, known))
                assert pictures.drawing_of(path.read_bytes()) == expected, f"{path.name}: run docs/make_pages.py"


def test_a_picture_is_drawn_again_only_if_it_shows_something_else(tmp_path: Path) -> None:
    """Its time of change tells; the field that makes it known does not make it unreadable."""
    path = tmp_path / "toy.png"
    paper = papers()["fedpmvr"]

    def chart(records: Records) -> Any:
        return draw(paper, paper.exhibits["figure1"], records)

    pictures.drawn(chart(of()), path)
    os.utime(path, ns=(1, 1))
    pictures.drawn(chart(of()), path)
    assert path.stat().st_mtime_ns == 1
    pictures.drawn(chart(of()).properties(title="another"), path)
    assert path.stat().st_mtime_ns != 1
    kinds = [kind for kind, _ in pictures._parts(path.read_bytes())]
    assert kinds[:2] == [b"IHDR", b"tEXt"]
    assert kinds[-1] == b"IEND"
    last_digits, other = ({"x": [0.1 + 0.2, 1.0]}, {"x": [0.3, 1.001]})
    assert pictures._rounded(last_digits) == {"x": [0.3, 1.0]} != pictures._rounded(other)
    changed = path.read_bytes().replace(pictures.FIELD, b"another picture")
    assert pictures.drawing_of(changed) is None


def test_a_record_of_another_configuration_is_refused() -> None:
    stale = run_of("feddc", "mnist-d2-15", "feddc", 62).model_copy(update={"key": "0" * 64})
    with pytest.raises(DataError, match=r"mnist-d2-15--feddc--seed0 of feddc in results is not one of feddc.toml"):
        pages.pages(of(stale))
    orphan = run_of("feddc", "mnist-d2-15", "feddc", 62).model_copy(update={"setting": "gone"})
    with pytest.raises(DataError, match="gone--feddc--seed0"):
        verdict("feddc.table1", of(orphan))


def test_the_rules_in_words_have_the_numbers_of_the_rules_in_code() -> None:
    text = " ".join(pages.NOTES.read_text(encoding="utf-8").split())
    accuracy, loss = margins(Measure(kind="best")), margins(Measure(kind="best", metric="loss"))
    rounds = margins(Measure(kind="rounds_to", target=0.5))

    def percent(share: float) -> str:
        assert math.isclose(100 * share, round(100 * share))
        return f"{100 * share:.0f} %"

    for said in (
        f"{accuracy.most:g} points of accuracy, {percent(loss.most)} of a loss and {percent(rounds.most)} of a number",
        f"down to {accuracy.least:g} points, {percent(loss.least)} and {percent(rounds.least)}",
        f"its last {SWING_OVER} evaluations",
        f"more than {accuracy.cap:g} points, {percent(loss.cap)} of a loss or {percent(rounds.cap)} of the rounds",
    ):
        assert said in text, said
