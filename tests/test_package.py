"""The package as others get it: the bare wheel in a clean environment, the public names, the types."""

import json
import os
import re
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from ranks import free_port

import autobyte
from autobyte.cli import app
from autobyte.tuners import TUNERS

ROOT = Path(__file__).parent.parent
BARE = Path(__file__).parent / "bare"
ALEXNET = ("compare", "--model", "alexnet", "--seeds", "1", "--budget", "2")
MEASURED = ("--calibration", "paper/data/testbed_calibration.json", "--grid", "paper/data/testbed_grid.csv")

# What a command needs beside the bare wheel; None: nothing
COMMANDS: dict[tuple[str, ...], str | None] = {
    ("models",): None,
    ("simulate", "--model", "alexnet", "--trace", "{here}/trace.json"): None,
    ("explain", "{here}/trace.json"): None,
    (*ALEXNET, "--tuners", "default,p3,grid,random,descent,twin,metanet,metanet-published"): None,
    (*ALEXNET, "--policies", "wfbp,usbyte"): None,
    ("doctor", "--model", "tests/data/small_vgg.json", "--json"): None,
    ("profile", "examples/small_vgg.py:make_model", "--input", "2,3,64,64", "--out", "{here}/profile.json"): None,
    ("probe", "--help"): None,
    ("collect", "--help"): None,
    ("import", "pipedream", "--help"): None,
    ("validate", *MEASURED): None,
    ("congestion", "bench", "--algorithms", "cubic,mocc", "--seconds", "2s", "--simulated"): None,
    (*ALEXNET, "--tuners", "bayesian"): "tune",
    (*ALEXNET, "--tuners", "bayesian-published"): "tune",
    (*ALEXNET, "--tuners", "optuna"): "tune",
    (*ALEXNET, "--tuners", "optuna-gp"): "tune",
    (*ALEXNET, "--tuners", "optuna-cmaes"): "cmaes",
    (*ALEXNET, "--tuners", "optuna-random"): "tune",
    (*ALEXNET, "--out", "{here}/compared"): "plot",
    ("report", "{here}/compared"): "plot",
    ("validate", *MEASURED, "--plot", "{here}/validation.png"): "plot",
    ("bench", "--model", "alexnet", "--out", "{here}/benched"): "plot",
    ("bench", "--model", "alexnet", "--size-scale", "0.1"): "testbed",
    ("bench", "--rehearse", "--model", "torchvision:resnet50"): "gpu",
    ("testbed", "check"): "testbed",
    ("calibrate", "--out", "{here}/calibration.json"): "testbed",
    ("record", "{here}/grid.csv"): "testbed",
    ("collect", "--out", "{here}/dataset", "--dask", "nowhere"): "dask",
    ("fit", "{here}/dataset"): "metanet",
}

SCRIPT = """
import torch
import autobyte.torch as ab

model = torch.nn.Linear(2, 2)
optimizer = ab.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, config=ab.Config(4096, 16384))
reveal_type(optimizer)
ab.DistributedOptimizer(optimizer, model, policy=3)
"""


IMPORTS = """
import json, time

spent = {}
for module in ("torch", "autobyte.torch"):
    began = time.perf_counter()
    __import__(module)
    spent[module] = time.perf_counter() - began
print(json.dumps(spent))
"""


@dataclass(frozen=True)
class Bare:
    """An environment with the wheel and what the wheel requires, nothing else."""

    wheel: Path
    python: Path
    folder: Path

    def run(self, *words: str | Path, cwd: Path | None = None) -> str:
        """What a Python command writes to stdout."""
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        done = subprocess.run(
            [self.python, *words],
            check=False,
            capture_output=True,
            text=True,
            cwd=cwd or self.folder,
            env=environment | {"OMP_NUM_THREADS": "1"},
            timeout=200,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
        return done.stdout


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bare]:
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=ROOT, check=True)
    (wheel,) = folder.glob("autobyte-*.whl")
    venv.create(folder / "clean", with_pip=False)
    python = folder / "clean" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, "--disable-pip-version-check", "--no-deps", wheel], check=True)
    (site,) = (folder / "clean" / "lib").glob("python*/site-packages")
    (wheels_own,) = Distribution.discover(name="autobyte", path=[str(site)])
    for one in required(wheels_own, {}).values():  # compiled already: to install them takes a minute
        for top in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
            (site / top).symlink_to(one.locate_file(top))
    yield Bare(wheel, python, folder)


def required(by: Distribution, found: dict[str, Distribution]) -> dict[str, Distribution]:
    """Distributions that one requires without its extras, by name, as they are installed here."""
    for requirement in map(Requirement, by.requires or ()):
        needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if needed and (one := distribution(requirement.name)).name not in found:
            found[one.name] = one
            required(one, found)
    return found


def test_every_public_name_is_there() -> None:
    for name in autobyte.__all__:
        assert getattr(autobyte, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        autobyte.nothing  # noqa: B018


def test_the_version_stands_in_one_place() -> None:
    """`autobyte.__version__`; hatch reads it from there, and the command prints it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert project["tool"]["hatch"]["version"]["path"] == "autobyte/__init__.py"
    assert f"## {autobyte.__version__} " in (ROOT / "CHANGELOG.md").read_text() + " "
    words = [sys.executable, "-m", "autobyte", "--version"]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    assert done.stdout == f"autobyte {autobyte.__version__}\n"


def test_every_command_and_tuner_is_tried_without_extras() -> None:
    """So that no new one is forgotten in the table above."""
    groups = [group.name for group in app.registered_groups]
    assert {words[0] for words in COMMANDS} == {*groups, *(command.name for command in app.registered_commands)}
    tried = {words[words.index("--tuners") + 1] for words in COMMANDS if "--tuners" in words}
    assert {name for names in tried for name in names.split(",")} == {
        name for name in TUNERS.names() if TUNERS[name].__module__.startswith("autobyte.")
    }


def test_the_bare_wheel_trains_two_ranks_as_ddp_does(bare: Bare) -> None:
    words = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port()))
    said = bare.run(*words, BARE / "training.py").splitlines()
    ways = re.findall(r'^    "([^"]+)": {', (BARE / "training.py").read_text(), re.MULTILINE)
    assert [line for line in said if line.endswith(": as DDP")] == [f"{way}: as DDP" for way in ways]
    refusals = sorted(line for line in said if "pip install" in line)
    assert refusals == [
        f"rank {rank}: {what} needs {module}: pip install 'autobyte[tune]'"
        for rank in range(2)
        for what, module in (("a search by Optuna", "optuna"), ("the Bayesian search", "skopt"))
    ]


def test_commands_name_the_extra_that_they_need(bare: Bare) -> None:
    """A traceback ends `commands.py`, and so this test."""
    words = [[word.format(here=bare.folder) for word in command] for command in COMMANDS]
    (bare.folder / "commands.json").write_text(json.dumps(words))
    bare.run(BARE / "commands.py", bare.folder / "commands.json", bare.folder / "ended.json", cwd=ROOT)
    for command, ended in zip(words, json.loads((bare.folder / "ended.json").read_text()), strict=True):
        extra = COMMANDS[tuple(word.replace(str(bare.folder), "{here}") for word in command)]
        if extra is None:
            assert ended["status"] in ((0, 3) if command[0] == "doctor" else (0,)), (command, ended)
            assert ended["out"], command
        else:
            assert ended["status"] == 2, (command, ended)
            assert re.fullmatch(rf"autobyte: .* needs \w+: pip install 'autobyte\[{extra}\]'\n", ended["err"]), ended


def test_the_wheel_is_light_beside_torch(bare: Bare) -> None:
    """Beside torch, which everybody who trains has already, so that a package more is a decision."""
    weight = json.loads(bare.run(BARE / "weight.py"))
    import_s = json.loads(bare.run("-c", IMPORTS))
    wheel_mb = bare.wheel.stat().st_size / 1e6
    beside = ", ".join(f"{name} {mb:.0f} MB" for name, mb in weight["beside_torch_mb"].items())
    print(f"\nthe wheel: {wheel_mb:.2f} MB; beside torch's {weight['torch_mb']:.0f} MB: {beside}")
    print(f"import torch: {import_s['torch']:.2f} s; then import autobyte.torch: {import_s['autobyte.torch']:.2f} s")
    assert wheel_mb < 1.75
    assert len(weight["beside_torch_mb"]) <= 18
    assert sum(weight["beside_torch_mb"].values()) < 420


def test_users_scripts_are_checked_against_the_types(bare: Bare) -> None:
    """mypy finds py.typed in the environment; torch itself, which takes a minute, it leaves out."""
    (bare.folder / "script.py").write_text(SCRIPT)
    (bare.folder / "mypy.ini").write_text("[mypy]\n[mypy-torch.*,numpy.*]\nfollow_imports = skip\n")
    words = ["-m", "mypy", "--config-file", "mypy.ini", "--python-executable", bare.python, "script.py"]
    done = subprocess.run([sys.executable, *words], check=False, capture_output=True, text=True, cwd=bare.folder)
    assert 'Revealed type is "autobyte.torch.optimizer.DistributedOptimizer"' in done.stdout
    assert (
        'Argument "policy" to "DistributedOptimizer" has incompatible type "int"; expected "str | None"'
        in done.stdout
    )
    assert done.stdout.count("error:") == 1, done.stdout


def test_pre_commit_runs_what_make_check_runs() -> None:
    recipe = (ROOT / "Makefile").read_text().split("\ncheck: .venv/test\n")[1].split("\n\n")[0]
    checks = re.findall(r"^\t\$\(BIN\)/(.+?)(?: \.)?$", recipe, re.MULTILINE)
    assert len(checks) >= 4
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    entries = [hook["entry"].removesuffix(" --force-exclude") for repo in hooks for hook in repo["hooks"]]
    assert [repo["repo"] for repo in hooks] == ["local"]  # nothing is downloaded
    assert [f".venv/bin/{check}" for check in checks] == entries[: len(checks)]
