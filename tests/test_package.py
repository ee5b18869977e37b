"""The package as others get it: a wheel, the public names, the demo."""

import os
import subprocess
import sys
import sysconfig
import time
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


def test_the_demo_takes_less_than_90_seconds(tmp_path: Path) -> None:
    """What `make demo` runs once everything is installed."""
    command = [sys.executable, "-m", "autobyte"]
    model = f"{ROOT / 'examples' / 'small_vgg.py'}:make_model"
    profile = ["profile", model, "--input", "16,3,64,64", "--name", "small_vgg", "--out", str(tmp_path / "p.json")]
    compare = ["compare", "--model", str(tmp_path / "p.json"), "--workers", "8", "--bandwidth", "1Gbit"]
    began = time.perf_counter()
    subprocess.run([*command, *profile], check=True)
    shown = subprocess.run(
        [*command, *compare, "--out", str(tmp_path / "out")], check=True, capture_output=True, text=True
    )
    spent = time.perf_counter() - began
    print(f"\nthe demo: {spent:.0f} s (less than 90 s)")
    assert spent < 90
    assert all(name in shown.stdout for name in ("default", "p3", "grid", "random", "optimum"))
    assert (tmp_path / "out" / "compare.png").exists()
