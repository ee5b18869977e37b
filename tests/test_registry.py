"""Names and the classes they stand for: built in, registered, or brought by another package."""

from pathlib import Path

import pytest

from autobyte.errors import InputError
from autobyte.registry import Registry
from autobyte.scheduler.policies import POLICIES, Policy
from autobyte.tuners import TUNERS, Tuner

BUILTIN = {"path": "pathlib:Path", "fraction": "fractions:Fraction"}


@pytest.fixture
def registry() -> Registry[object]:
    return Registry("thing", BUILTIN, group="autobyte_test.things")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another package, installed."""
    (tmp_path / "brought_along.py").write_text("class Theirs: pass\n")
    info = tmp_path / "brought-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    points = ["theirs = brought_along:Theirs", "path = brought_along:Theirs", "gone = not_there:Gone"]
    (info / "entry_points.txt").write_text("\n".join(["[autobyte_test.things]", *points]))
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_what_is_built_in_is_found(registry) -> None:
    assert registry["path"] is Path
    assert registry.names() == ["fraction", "path"]


def test_an_unknown_name_comes_with_the_nearest_one(registry) -> None:
    message = r"^unknown thing 'fractoin'; did you mean 'fraction'\? \(known: fraction, path\)$"
    with pytest.raises(InputError, match=message):
        registry["fractoin"]


def test_a_registered_class_is_found(registry) -> None:
    @registry.register("mine")
    class Mine:
        pass

    assert registry["mine"] is Mine
    assert registry.names() == ["fraction", "mine", "path"]


def test_a_name_is_given_once(registry) -> None:
    @registry.register("mine")
    class Mine:
        pass

    with pytest.raises(InputError, match=r"^thing 'mine' exists already; choose another name$"):
        registry.register("mine")(type("Other", (), {}))
    elsewhere = type("Mine", (), {"__qualname__": Mine.__qualname__, "__module__": "elsewhere"})
    with pytest.raises(InputError, match=r"^thing 'mine' exists already"):
        registry.register("mine")(elsewhere)
    with pytest.raises(InputError, match=r"^thing 'path' exists already"):
        registry.register("path")(Mine)
    assert registry["mine"] is Mine
    assert registry["path"] is Path


def test_a_module_that_is_loaded_again_may_register_again(registry) -> None:
    def load() -> type:
        @registry.register("mine")
        class Mine:
            pass

        return Mine

    first, second = load(), load()
    assert first is not second
    assert registry["mine"] is second


def test_another_package_brings_its_own_but_takes_no_name(registry, package: Path) -> None:
    assert registry.names() == ["fraction", "gone", "path", "theirs"]
    assert registry["theirs"].__module__ == "brought_along"
    assert [name in registry for name in ("path", "theirs", "ours")] == [True, True, False]
    assert registry["path"] is Path


def test_tables_of_this_package_name_classes_of_their_kind() -> None:
    assert {"fifo", "wfbp", "ddp", "p3", "bytescheduler"} <= set(POLICIES.names())
    assert {"default", "p3", "grid", "random"} <= set(TUNERS.names())
    assert all(issubclass(POLICIES[name], Policy) for name in POLICIES.names())
    assert all(issubclass(TUNERS[name], Tuner) for name in TUNERS.names())


def test_the_tables_say_what_kind_of_name_is_unknown() -> None:
    with pytest.raises(InputError, match=r"^unknown tuner 'gird'; did you mean 'grid'?"):
        TUNERS["gird"]
    with pytest.raises(InputError, match=r"^unknown policy 'bytesheduler'; did you mean 'bytescheduler'?"):
        POLICIES["bytesheduler"]


@pytest.mark.parametrize("table", [TUNERS, POLICIES])
def test_a_class_registers_at_its_interface(table: Registry[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_classes", {})
    interface = {TUNERS: Tuner, POLICIES: Policy}[table]

    @interface.register("of my own")
    class Mine(interface):
        pass

    assert table["of my own"] is Mine
