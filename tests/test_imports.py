"""Imports go one way, and the light commands stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "fedkeel"
ALLOWED: dict[str, set[str]] = {
    "data": set(),
    "learning": set(),
    "state": set(),
    "algorithms": {"learning", "state"},
    "engine": {"algorithms", "learning", "state", "data"},
    "runs": {"engine", "algorithms", "learning", "state", "data"},
    "measure": {"engine", "algorithms", "learning", "state", "data"},
    "trackers": {"runs"},
    "comparison": {"runs", "data", "sweeps"},
    "plots": {"api", "build", "calls", "changes", "config", "stored"}
    | {"comparison", "measure", "runs", "engine", "algorithms", "data"},
    "pages": {"plots", "comparison", "runs", "data", "sweeps"},
    "papers": {"api", "build", "config", "plots", "measure", "runs", "engine", "algorithms", "learning", "data"},
    "tuning": {"config", "papers", "runs", "algorithms", "data"},
    "ui": {"build", "changes", "config", "template", "comparison", "plots", "runs", "data"},
    "network": {"build", "config", "effects", "session", "runs", "engine", "algorithms", "learning", "data"},
    "costs": {"build", "config", "effects", "runs", "engine", "algorithms", "learning", "state", "data"},
    "bench": {"build", "runs", "engine", "algorithms", "learning", "state", "data"},
}
"""What each part may import, itself aside."""
ABOVE = {"cli"}
"""Parts that may import everything, as the modules beside the parts do."""
EVERYWHERE = {"arguments", "errors", "notices", "system", "theme", "__version__"}


def code_of(part: str) -> list[Path]:
    """The files of a part that hold any code."""
    return [path for path in (PACKAGE / part).rglob("*.py") if path.read_text(encoding="utf-8").strip()]


def test_every_part_has_a_rule() -> None:
    parts = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert parts == ALLOWED.keys() | ABOVE


@pytest.mark.parametrize("part", [*ALLOWED, *ABOVE])
def test_no_part_is_empty(part: str) -> None:
    assert code_of(part)


def imported(path: Path) -> set[str]:
    """The parts of fedkeel that a file imports."""
    parts = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "fedkeel":
            inner = node.module.split(".")[1:]
            parts |= {inner[0]} if inner else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            parts |= {name.name.split(".")[1] for name in node.names if name.name.startswith("fedkeel.")}
    return parts


@pytest.mark.parametrize("part", ALLOWED)
def test_imports_go_one_way(part: str) -> None:
    for path in code_of(part):
        extra = imported(path) - ALLOWED[part] - {part} - EVERYWHERE
        assert not extra, f"{path.relative_to(PACKAGE)} imports {sorted(extra)}"


@pytest.mark.parametrize(
    "code",
    [
        "import fedkeel",
        "import fedkeel.data",
        "from fedkeel.cli import main",
        "from fedkeel.cli.main import app; app(['data'], standalone_mode=False)",
        "import fedkeel.cli.runs, fedkeel.cli.screen, fedkeel.runs.overview",  # what `fedkeel runs` needs
    ],
)
def test_light_imports_do_not_load_torch(code: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}; sys.exit('torch' in sys.modules)"], cwd=PACKAGE.parent, check=False
    )
    assert result.returncode == 0


def test_no_pickle_is_ever_loaded() -> None:
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for word in ("import pickle", "torch.load(", "allow_pickle=True", "import dill", "import joblib"):
            assert word not in text, f"{path.relative_to(PACKAGE)} has {word!r}"


def test_scipy_waits_for_the_algorithms_that_need_it() -> None:
    code = "import sys, fedkeel.api; fedkeel.make_algorithm('feddc'); sys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, check=False).returncode == 0
