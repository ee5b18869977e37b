"""The demo as users run it, within its time."""

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent


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
