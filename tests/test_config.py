"""Experiments as data: reading, sweeping, changing, and the sentence for every mistake."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkeel import build, changes, config
from fedkeel.errors import FedkeelError, InputError

GOOD = """\
seed = 3

[data]
name = "mnist5k"

[partition]
rule = "dirichlet"
clients = 10
alpha = 0.3

[algorithm]
name = "feddc"
alpha = 0.1

[training]
rounds = 2
lr = 0.1
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "experiment.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_dump_reads_back_equal(tmp_path: Path) -> None:
    (experiment,) = config.read(written(tmp_path, GOOD))
    (again,) = config.read(written(tmp_path, config.dump(experiment)))
    assert again == experiment
    assert again.algorithm_params() == {"alpha": 0.1}
    assert again.training.rounds == 2


def test_faults_are_dumped_and_read_back(tmp_path: Path) -> None:
    stragglers = "stragglers = 0.2\nstraggler_share = [0.3, 0.5]\n"
    text = GOOD + f'[faults]\nlost = 0.1\n{stragglers}bad_update = "clip"\nmax_update_norm = 9\n'
    (experiment,) = config.read(written(tmp_path, text))
    assert experiment.faults.straggler_share == (0.3, 0.5)
    (again,) = config.read(written(tmp_path, config.dump(experiment)))
    assert again == experiment


def test_settings_change_fields_before_validation(tmp_path: Path) -> None:
    (experiment,) = config.read(written(tmp_path, GOOD), ["training.lr=0.05", "algorithm.name=feddyn", "seed=7"])
    assert (experiment.training.lr, experiment.algorithm.name, experiment.seed) == (0.05, "feddyn", 7)


def test_a_sweep_is_the_product_of_its_lists(tmp_path: Path) -> None:
    sweep = '[sweep]\nalgorithm = ["fedavg", "feddyn"]\nseed = [0, 1]\n"training.lr" = [0.1, 0.2, 0.3]\n'
    text = GOOD.replace("alpha = 0.1\n", "") + sweep + "[algorithms.feddyn]\nalpha = 0.5\n"
    experiments = config.read(written(tmp_path, text))
    assert len(experiments) == 12
    assert len({experiment.label for experiment in experiments}) == 12
    assert {e.algorithm_params().get("alpha") for e in experiments if e.algorithm.name == "feddyn"} == {0.5}


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "alpha = 0.1",
            "alpha = -0.1",
            r"feddc.alpha must be a number of at least 0, got -0.1 \(experiment.toml, line 13",
        ),
        (
            "alpha = 0.1",
            "alfa = 0.1",
            r"no field in feddc named 'alfa' \(experiment.toml, line 13\). Did you mean 'alpha'",
        ),
        ("alpha = 0.3", "alpha = 0", r"partition.alpha must be a number above 0, got 0 \(experiment.toml, line 9\)"),
        (
            'name = "feddc"',
            'name = "feddcc"',
            r"no algorithm named 'feddcc' \(experiment.toml, line 12\). Did you mean 'feddc'",
        ),
        ('name = "mnist5k"', 'name = "mnst5k"', r"no data set named 'mnst5k' \(experiment.toml, line 4\)"),
        ('rule = "dirichlet"', 'rule = "dirichle"', r"no partition rule named 'dirichle' \(experiment.toml, line 7\)"),
        (
            "rounds = 2",
            'rounds = "many"',
            r"training.rounds must be a whole number, got 'many' \(experiment.toml, line 16\)",
        ),
        ("rounds = 2", "rounds = 0", r"training.rounds must be a number of at least 1, got 0"),
        (
            "lr = 0.1",
            "lrr = 0.1",
            r"no field in training named 'lrr' \(experiment.toml, line 17\). Did you mean 'lr'",
        ),
        ("[training]", "[trainning]", r"no field in experiment named 'trainning'.*Did you mean 'training'"),
        ("seed = 3", "seed = -1", r"seed must be a number of at least 0, got -1 \(experiment.toml, line 1\)"),
        ("rounds = 2", "rounds = 2\nepochs = 1\nsteps = 1", r"training must be given either epochs or steps"),
        ("lr = 0.1", "lr = nan", r"training.lr must be"),
        ("seed = 3", "seed = ", r"experiment.toml is not valid TOML"),
        (
            "[training]",
            "[faults]\ndropout = 1\n[training]",
            r"faults.dropout must be a number below 1, got 1 \(experiment.toml, line 16\)",
        ),
        (
            "[training]",
            "[faults]\nstraggler_share = [0.8, 0.2]\n[training]",
            r"faults.straggler_share must be two numbers above 0 and at most 1, the smaller first, got \[0.8, 0.2\]",
        ),
        (
            "[training]",
            '[faults]\nbad_update = "skip"\n[training]',
            r"faults.bad_update must be one of 'stop', 'skip-client' or 'clip', got 'skip'",
        ),
        (
            "[training]",
            '[faults]\nbad_update = "clip"\n[training]',
            r"faults must be given max_update_norm with bad_update = 'clip'",
        ),
        (
            "[training]",
            "[faults]\nmax_update_norm = inf\n[training]",
            r"faults.max_update_norm must be a finite number",
        ),
        (
            "[training]",
            "[faults]\ndrop = 0.1\n[training]",
            r"no field in faults named 'drop'.*Did you mean 'dropout'",
        ),
        (
            'name = "feddc"\nalpha = 0.1',
            'name = "vrlsgd"\n[faults]\nlost = 0.1',
            r"faults.lost must be 0 with vrlsgd, which needs every client .* got 0.1 \(experiment.toml, line 14\)",
        ),
    ],
)
def test_a_mistake_gets_one_sentence(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    with pytest.raises(FedkeelError, match=sentence) as caught:
        config.read(written(tmp_path, GOOD.replace(old, new)))
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FedkeelError, match="there is no experiment file"):
        config.read(tmp_path / "absent.toml")


@pytest.mark.parametrize("setting", ["training.lr", "=3", "seed.x=1"])
def test_a_bad_setting_is_refused(tmp_path: Path, setting: str) -> None:
    with pytest.raises(InputError):
        config.read(written(tmp_path, GOOD), [setting])


def test_an_empty_sweep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"sweep.seed must be a list"):
        config.read(written(tmp_path, GOOD + "[sweep]\nseed = []\n"))


def refusal(tmp_path: Path, text: str, settings: list[str] | None = None) -> str:
    with pytest.raises(InputError) as caught:
        config.read(written(tmp_path, text), settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


NO_ALGORITHM = GOOD.replace('[algorithm]\nname = "feddc"\nalpha = 0.1\n', "")
SWEEP = '[sweep]\nalgorithm = ["fedavg", "feddyn"]\n'


@pytest.mark.parametrize(
    "setting", ["algorithm=scaffold", "algorithm.name=scaffold", 'algorithm={name="scaffold"}', "seed=1"]
)
def test_what_the_file_sweeps_over_is_not_set_beside_it(tmp_path: Path, setting: str) -> None:
    text = NO_ALGORITHM + SWEEP + "seed = [0, 1]\n"
    assert "is set although the file sweeps over it; set sweep." in refusal(tmp_path, text, [setting])
    assert len(config.read(written(tmp_path, text), ["sweep.algorithm=['scaffold']", "sweep.seed=[4]"])) == 1


def test_a_table_for_an_algorithm_that_does_not_run_is_refused(tmp_path: Path) -> None:
    text = NO_ALGORITHM + "[algorithms.NAME]\nalpha = 0.5\n" + SWEEP
    misspelt = refusal(tmp_path, text.replace("NAME", "fedyn"))
    assert "[algorithms.fedyn] has no effect, because no run uses fedyn (experiment.toml, line 15)" in misspelt
    assert "Did you mean [algorithms.feddyn]?" in misspelt
    assert "no run uses scaffold" in refusal(tmp_path, text.replace("NAME", "scaffold"))
    narrowed = config.read(written(tmp_path, text.replace("NAME", "feddyn")), ['sweep.algorithm=["fedavg"]'])
    assert [one.algorithm.name for one in narrowed] == ["fedavg"]  # the file itself is sound, and says feddyn


def test_a_parameter_is_given_once(tmp_path: Path) -> None:
    assert "alpha of feddc is given twice" in refusal(tmp_path, GOOD + "[algorithms.feddc]\nalpha = 0.5\n")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "seed = 3",
            "seed = true",
            "seed must be a whole number, got True (experiment.toml, line 1). Meaning: decides",
        ),
        ("seed = 3", "seed = 1.0", "seed must be a whole number, got 1.0"),
        ("seed = 3", 'seed = "3"', "seed must be a whole number, got '3'"),
        ("seed = 3", "seed = 9223372036854775808", "seed must be a number below 2^63"),
        ("[training]", "[model]\nseed = 18446744073709551616\n[training]", "model.seed must be a number below 2^63"),
        ("alpha = 0.3", "alpha = 0.3\nseed = 9223372036854775808", "partition.seed must be a number below 2^63"),
        ('"dirichlet"\nclients = 10\nalpha = 0.3', '"fedveca_case1"\nseed = 1', "which draws nothing, got 1"),
        ('name = "mnist5k"', 'name = "mnist5k"\ndata_dir = "x"', "data.data_dir is no field of an experiment"),
        ('name = "mnist5k"', 'name = "mnist5k"\nalpha = 1', "no parameter of data set 'mnist5k' named 'alpha'"),
        ('name = "mnist5k"', 'name = "emnist"', "Did you mean 'emnist_letters'?"),
        ('name = "mnist5k"', 'name = "./sites"', "partition must be absent for ./sites"),
        ('name = "mnist5k"', 'name = "synthetic_feddyn"', "partition must be absent for synthetic_feddyn"),
        ("lr = 0.1", "learning_rate = 0.1", "no field in training named 'learning_rate' (experiment.toml, line 17). "),
        ("lr = 0.1", "learning_rate = 0.1", "Did you mean 'lr'?"),
        (
            '"feddc"\nalpha = 0.1',
            '"fedbn"\n[training]\nbuffers = "freeze"\n[run]\n',
            "training.buffers must be 'local'",
        ),
        ("[training]", "[faults]\nstraggler_share = [0.3, 0.4]\n[training]", "give faults.stragglers"),
        ("[training]", '[run]\nexecutor = "serial"\nworkers = 4\n[training]', "run.workers must be 1 or absent"),
        ("[training]", "[sweep]\ntraining = [{lr = 0.1}]\n[training]", "must list values, not tables"),
        ("[training]", '[sweep]\nalgorithm = ["fedavg"]\n"algorithm.name" = ["feddyn"]\n[training]', "twice"),
    ],
)
def test_a_setting_without_effect_is_refused(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    text = GOOD.replace(old, new)
    if "[run]" in new and "buffers" in new:
        text = text.replace("[training]\nrounds = 2\nlr = 0.1\n", "")
    assert sentence in refusal(tmp_path, text)


@pytest.mark.parametrize(
    "table",
    [
        {"data": {"name": "./sites"}},
        {"data": {"name": "synthetic_feddyn", "clients": 4}},
        {"algorithm": {"name": "fedbn"}},
        {"run": {"executor": "serial"}, "faults": {"stragglers": 0.5, "straggler_share": [0.1, 0.2]}},
        {"partition": {"rule": "fedveca_case1", "clients": 5}},
    ],
)
def test_what_a_run_records_of_itself_can_be_run_again(tmp_path: Path, table: dict[str, Any]) -> None:
    """A dump names every field, also those that have no effect; none of them may be refused, or claim a partition."""
    (experiment,) = config.expand(table, [])
    text = config.dump(experiment)
    (again,) = config.read(written(tmp_path, text))
    assert config.dump(again) == text
    assert changes.changes(experiment, again) == []
    assert ("[partition]" in text) == ("data" not in table)


NUMBERS = ["training.rounds", "training.lr", "run.workers", "partition.clients", "evaluation.every", "algorithm.alpha"]
FLAGS = ["training.drop_last", "data.subset_ok", "evaluation.train"]


@pytest.mark.parametrize("field", NUMBERS)
def test_true_is_no_number(tmp_path: Path, field: str) -> None:
    said = refusal(tmp_path, GOOD, [f"{field}=true"]).replace("a whole number", "a number")
    assert said.startswith(f"{field.replace('algorithm', 'feddc')} must be a number, got True")


@pytest.mark.parametrize("field", FLAGS)
@pytest.mark.parametrize("value", ["1", "0.0", "'yes'"])
def test_only_true_and_false_are_flags(tmp_path: Path, field: str, value: str) -> None:
    assert f"{field} must be true or false, got {value}" in refusal(tmp_path, GOOD, [f"{field}={value}"])


@pytest.mark.parametrize("date", ["1979-05-27", "07:32:00", "1979-05-27T07:32:00Z"])
def test_dates_are_no_settings(tmp_path: Path, date: str) -> None:
    for text, settings in ((GOOD, [f"seed={date}"]), (GOOD.replace("seed = 3", f"seed = {date}"), [])):
        assert "seed must be a whole number" in refusal(tmp_path, text, settings)


def test_a_complaint_about_a_setting_names_the_setting(tmp_path: Path) -> None:
    message = refusal(tmp_path, GOOD, ["training.lr=-1"])
    assert message.startswith("training.lr must be a number above 0, got -1 (--set training.lr=-1).")
    assert "(--set algorithm=fedcd)" in refusal(tmp_path, GOOD, ["algorithm=fedcd"])
    assert "experiment.toml, line 17" in refusal(tmp_path, GOOD.replace("lr = 0.1", "lr = -1"), ["seed=1"])


@pytest.mark.parametrize("values", [12, 2])
def test_a_sweep_without_end_is_counted_before_it_is_made(tmp_path: Path, values: int) -> None:
    fields = [f"f{i}" for i in range(8 if values == 12 else 40)]
    lists = "".join(f'"algorithm.{name}" = {list(range(values))}\n' for name in fields)
    assert "a sweep may stand for at most 10,000 runs" in refusal(tmp_path, GOOD + "[sweep]\n" + lists)


@pytest.mark.parametrize("depth", [25, 3000])
def test_tables_in_tables_in_tables_are_refused(tmp_path: Path, depth: int) -> None:
    key = ".".join("a" * depth)
    assert "inside each other" in refusal(tmp_path, f"{key} = 1\n")
    assert "inside each other" in refusal(tmp_path, GOOD, [f"{key}=1"])


@pytest.mark.parametrize("kind", ["pipe", "folder", "dangling"])
def test_only_files_are_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "e.toml"
    {"pipe": os.mkfifo, "folder": os.mkdir, "dangling": lambda p: os.symlink("nowhere", p)}[kind](path)
    with pytest.raises(FedkeelError, match=r"e\.toml"):
        config.read(path)


def test_a_bare_name_is_never_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mnist5k", "farms", "sites"):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "0.npz", x=np.ones((4, 3), np.float32), y=np.array([0, 1, 0, 1]))
    (built_in,) = config.expand({"data": {"name": "mnist5k"}, "partition": {"clients": 5}}, [])
    assert build.make_federation(built_in).dataset.input_shape == (1, 28, 28)
    (folder,) = config.expand({"data": {"name": "./mnist5k"}}, [])
    assert build.make_federation(folder).dataset.input_shape == (3,)
    with pytest.raises(InputError, match=r"no data set named 'farms'\. The folder is written \./farms\."):
        config.expand({"data": {"name": "farms"}}, [])
    (elsewhere,) = config.expand({"data": {"name": "sites"}}, [])
    with pytest.raises(InputError, match=r"run it with fedkeel network run; the folder is written \./sites\."):
        build.make_federation(elsewhere)


def test_a_run_may_keep_a_part_of_the_samples(tmp_path: Path) -> None:
    (experiment,) = config.read(written(tmp_path, GOOD), ["data.samples=300", "training.epochs=0.7"])
    federation = build.make_federation(experiment)
    assert federation.n == 300
    (again,) = config.read(written(tmp_path, config.dump(experiment)))
    assert again == experiment
    (other,) = config.read(written(tmp_path, GOOD), ["data.samples=400"])
    with pytest.raises(InputError, match=r"data\.samples was 300, asked 400"):
        changes.allowed(experiment, other.model_copy(update={"training": experiment.training}), 1, tmp_path)
    assert changes.asks_for_other_data(experiment, other)
    with pytest.raises(InputError, match=r"training\.epochs was 0\.7, asked not set"):
        changes.allowed(experiment.model_copy(update={"data": other.data}), other, 1, tmp_path)


def test_samples_that_come_dealt_to_clients_are_not_thinned_out(tmp_path: Path) -> None:
    generated = GOOD.replace('name = "mnist5k"', 'name = "synthetic_feddyn"\nsamples = 30').replace(
        '[partition]\nrule = "dirichlet"\nclients = 10\nalpha = 0.3\n', ""
    )
    (experiment,) = config.read(written(tmp_path, generated))
    assert set(build.make_federation(experiment).sizes) == {30}  # which is that set's own parameter
    with pytest.raises(InputError, match=r"data\.samples must be absent for synthetic_fedprox"):
        config.read(written(tmp_path, generated.replace("synthetic_feddyn", "synthetic_fedprox")))
    with pytest.raises(InputError, match=r"data\.samples must be absent for a folder"):
        config.read(written(tmp_path, generated.replace("synthetic_feddyn", "./sites")))


@pytest.mark.parametrize("setting", ["data.augment=\udcff", 'name="a\ud800"', 'evaluation.metrics=["\udfff"]'])
def test_bytes_that_are_no_text_are_refused(setting: str, tmp_path: Path) -> None:
    """As a shell hands them over: no file could keep them."""
    with pytest.raises(InputError, match=r"must be text that UTF-8 has a form for|is not valid|TOML"):
        config.read(written(tmp_path, 'data.name = "mnist5k"\n'), [setting])
