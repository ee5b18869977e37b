"""The package as others get it: a wheel, the public names."""

import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest

import autobyte

ROOT = Path(__file__).parent.parent


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


def test_a_wheel_works_outside_the_checkout(tmp_path: Path) -> None:
    """In an environment that has the dependencies, and AutoByte from the wheel alone."""
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True)
    (wheel,) = tmp_path.glob("autobyte-*.whl")
    home = tmp_path / "clean"
    venv.create(home, with_pip=False)
    (packages,) = home.glob("lib/python*/site-packages")
    here = sysconfig.get_paths()["purelib"]
    (packages / "dependencies.pth").write_text(
        f"{here}\n"
    )  # found after the environment's own; brings no .pth of ours
    install = [sys.executable, "-m", "pip", "--python", str(home), "install", "--quiet", "--no-deps", str(wheel)]
    subprocess.run(install, check=True)
    where = [home / "bin" / "python", "-c", "import autobyte; print(autobyte.__file__)"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    shown = subprocess.run(where, check=True, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert Path(shown.stdout.strip()).is_relative_to(home)
    for words in (["models"], ["simulate", "--model", "vgg16"], ["compare", "--model", "alexnet", "--seeds", "1"]):
        extra = ["--out", "out", "--budget", "2"] if words[0] == "compare" else []
        done = subprocess.run([home / "bin" / "autobyte", *words, *extra], cwd=tmp_path, env=environment, check=False)
        assert done.returncode == 0
    subprocess.run([home / "bin" / "autobyte", "report", "out"], cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000
