"""Which versions are refused, and that nothing is imported that was not asked for."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from autobyte.errors import InputError
from autobyte.integrations import versions

MODULES = {"accelerate": "accelerate", "trainer": "transformers", "lightning": "lightning", "fabric": "lightning"}
EXTRAS = {"accelerate": "accelerate", "transformers": "trainer", "lightning": "lightning"}


@pytest.mark.parametrize("package", versions.TRIED)
def test_versions_that_were_never_tried(
    package: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    oldest, newest = versions.TRIED[package]
    monkeypatch.setattr(versions, "_warned", set())
    for found in (oldest, f"{newest}.7", f"{newest}.0.dev0"):
        monkeypatch.setattr(versions, "version", {package: found}.__getitem__)
        versions.check_version(package)
    assert not caplog.messages
    monkeypatch.setattr(versions, "version", {package: "0.9.1"}.__getitem__)
    with pytest.raises(InputError, match=rf"{package} 0\.9\.1 is too old, .* pip install --upgrade {package}"):
        versions.check_version(package)
    monkeypatch.setattr(versions, "version", {package: "99.0"}.__getitem__)
    with caplog.at_level(logging.WARNING, "autobyte"):
        versions.check_version(package)
        versions.check_version(package)
    assert [message.split(" was")[0] for message in caplog.messages] == [f"{package} 99.0"]


def test_both_ends_of_what_is_supported_are_installed_somewhere() -> None:
    """The newest by `make test`, the oldest by `make versions`."""
    folder = Path(__file__).parent
    for file, end in ((folder / "oldest.txt", 0), (folder.parents[1] / "constraints.txt", 1)):
        pinned = dict(line.split("==") for line in file.read_text().splitlines() if "==" in line)
        assert {name: pinned[name].rsplit(".", 1)[0] for name in versions.TRIED} == {
            name: tried[end] for name, tried in versions.TRIED.items()
        }


@pytest.mark.parametrize(("module", "more"), [("autobyte", ["torch"]), ("autobyte.torch", [])])
def test_autobyte_imports_none_of_them(module: str, more: list[str]) -> None:
    """Nor does `import autobyte` load a framework."""
    names = [*EXTRAS, "keras", "tensorflow", "jax", "mxnet", "byteps", "horovod", *more]
    script = f"import sys, {module}; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_what_is_not_installed_is_named_with_the_command_that_brings_it() -> None:
    """Each module in turn, in a process that finds none of the packages."""
    script = f"""
import sys
class Nothing:
    def find_spec(name, path, target=None):
        if name in {list(EXTRAS)}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Nothing)
for module in {list(MODULES)}:
    try:
        __import__("autobyte.integrations." + module)
    except ImportError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    said = done.stdout.splitlines()
    assert len(said) == len(MODULES)
    needed = ("accelerate", "accelerate", "lightning", "lightning")  # the trainer trains by Accelerate
    for line, package in zip(said, needed, strict=True):
        assert f"needs {package}: pip install 'autobyte[{EXTRAS[package]}]'" in line
