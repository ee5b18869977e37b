"""Policies as files: nothing is unpickled, damage is told, and what ships says how it was made."""

import json
from pathlib import Path

import numpy as np
import pytest

from autobyte.congestion.model import ActorCritic
from autobyte.congestion.objectives import Objective
from autobyte.congestion.stored import SHIPPED, adapted_to, digest, load_policy, save_policy, shipped
from autobyte.errors import FileError

SHIP = ("mocc", "aurora", "orca-style")


def test_a_policy_survives_its_file(tmp_path: Path) -> None:
    policy, path = ActorCritic(seed=4).policy(), tmp_path / "some" / "policy.npz"
    save_policy(policy, path, about={"seed": 4})
    again = load_policy(path)
    assert all(np.array_equal(policy.arrays[name], again.arrays[name]) for name in policy.arrays)
    assert json.loads(path.with_suffix(".json").read_text()) == {"seed": 4, "digest": digest(policy)}


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.npz"
    with pytest.raises(FileError, match=r"no weights at .*policy.npz: make them with `autobyte congestion train`"):
        load_policy(path)
    path.write_bytes(b"PK nothing")
    with pytest.raises(FileError, match="holds no weights of this project, or damaged ones"):
        load_policy(path)
    np.savez(path, other=np.zeros(3))
    with pytest.raises(FileError, match="are damaged: the policy needs finite numbers of shape"):
        load_policy(path)
    np.savez(path, evil=np.array([{}], dtype=object))
    with pytest.raises(FileError, match="holds no weights of this project"):
        load_policy(path)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot write weights"):
        save_policy(ActorCritic().policy(), tmp_path / "file" / "policy.npz", about={})


@pytest.mark.parametrize("name", SHIP)
def test_what_ships_is_small_and_says_how_it_was_made(name: str) -> None:
    files = [SHIPPED / f"{name}{suffix}" for suffix in (".npz", ".json")]
    assert sum(file.stat().st_size for file in files) < 100_000
    about = json.loads(files[1].read_text())
    assert about["digest"] == digest(shipped(name))
    assert {"command", "recipe", "versions", "cpu_s", "scores"} <= set(about)
    assert about["recipe"]["seed"] == 0


def test_what_weights_were_adapted_to_stands_beside_them(tmp_path: Path) -> None:
    path = tmp_path / "policy.npz"
    assert adapted_to(path) == ()
    about = path.with_suffix(".json")
    about.write_text(json.dumps({"adapted_to": [[0.7, 0.2, 0.1]]}))
    assert adapted_to(path) == (Objective(0.7, 0.2, 0.1),)
    for text in ("{", "[]", '{"adapted_to": [[1, 1, 1]]}', '{"adapted_to": [[1]]}'):
        about.write_text(text)
        with pytest.raises(FileError, match=r"cannot tell from .* what its weights were adapted to"):
            adapted_to(path)
