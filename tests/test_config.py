"""Experiments as data: reading, sweeping, changing, and the sentence for every mistake."""

from pathlib import Path

import pytest

from fedkeel import config
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
    text = GOOD + '[faults]\nlost = 0.1\nstraggler_share = [0.3, 0.5]\nbad_update = "clip"\nmax_update_norm = 9\n'
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
            'name = "fedcd"',
            r"no algorithm named 'fedcd' \(experiment.toml, line 12\). Did you mean 'feddc'",
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
            r"no field in experiment named 'lrr' \(experiment.toml, line 17\). Did you mean 'lr'",
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
            r"no field in experiment named 'drop'.*Did you mean 'dropout'",
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
