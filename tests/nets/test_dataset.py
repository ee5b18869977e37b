"""The paper's protocol, drawn the same every time; parts on disk that a killed collection completes."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nets.small import SEED, groups, some_models, truth

from autobyte import models
from autobyte.config import Config, Space
from autobyte.errors import FileError, InputError
from autobyte.features.schema import CANDIDATE, LAYER, ROWS, place
from autobyte.job import Cluster, Job
from autobyte.nets import dataset, stored
from autobyte.nets.collection import Folder, Order, Part
from autobyte.nets.dataset import KINDS, START_UPS, Groups, draw, episode, measured
from autobyte.nets.training import OUTLIER
from autobyte.scenario import Change, Scenario
from autobyte.simulator.observe import truth_s, window
from autobyte.simulator.world import World
from autobyte.trace import Measurement

ORDER = Order(environments=2, judged=1, seed=SEED, models="a", unseen="b")


def same(a: Groups, b: Groups) -> bool:
    return all(np.array_equal(getattr(a, f.name), getattr(b, f.name), equal_nan=True) for f in fields(Groups))


def test_an_episode_is_the_papers_protocol() -> None:
    seen: list[tuple[float, Config, int, int]] = []

    def watched(
        job: Job, config: Config, *, iterations: int, first: int, effects: Mapping[str, Any], seed: int
    ) -> Measurement:
        seen.append((max(job.cluster.up_bytes_per_s), config, iterations, first))
        return window(job, config, iterations=iterations, first=first, effects=effects, seed=seed)

    environment = next(e for n in range(9) if not (e := draw(n, some_models(), seed=SEED, kind="paper")).effects)
    episode(environment, watched)
    assert [(iterations, first) for _, _, iterations, first in seen] == [(10, 10 * n) for n in range(60)]
    rates = [round(rate / 1.25e8, 3) for rate, *_ in seen]
    assert Counter(rates) == dict.fromkeys((0.5, 1.0, 5.0, 10.0, 25.0), 12)
    assert rates[::2] == rates[1::2]  # each stays for 20 iterations
    assert dataset.ENVIRONMENTS * len(seen) * 10 == 360_000
    space = Space()
    assert all(config in space for _, config, *_ in seen)
    assert len({config for _, config, *_ in seen}) > 30


def test_environments_are_drawn_the_same_every_time_and_differ() -> None:
    drawn = [draw(number, some_models(), seed=SEED, kind="varied") for number in range(60)]
    assert drawn == [draw(number, some_models(), seed=SEED, kind="varied") for number in range(60)]
    assert {e.job.cluster.architecture for e in drawn} == {"ps", "allreduce"}
    assert {e.job.cluster.workers for e in drawn} <= set(dataset.WORKERS)
    assert any(max(e.job.cluster.slowdown) > 1 for e in drawn)
    assert any(e.effects for e in drawn)
    assert any(not e.effects for e in drawn)
    assert not {e.job.model.name for e in drawn} & {"alexnet", "resnet50"}  # models of their own


def test_the_papers_environments_have_its_cluster_and_nothing_hidden() -> None:
    drawn = [draw(number, some_models(), seed=SEED, kind="published") for number in range(40)]
    assert all(len(set(row)) == 1 for e in drawn for row in e.job.cluster.table.tolist())  # all workers alike
    assert {e.job.cluster.workers for e in drawn} == {8}
    assert {e.job.cluster.architecture for e in drawn} == {"ps", "allreduce"}
    assert {e.job.cluster.overhead_s for e in drawn} == {start_up.overhead_s for start_up in START_UPS.values()}
    assert all(e.rates == dataset.RATES and not e.effects for e in drawn)
    assert {e.job.model.name for e in drawn} == {"alexnet", "resnet50"}  # as they are
    parts = replace(ORDER, environments=20, protocol="published").parts
    assert [part.protocol for part in parts] == ["published"] * 4
    with pytest.raises(InputError, match="unknown protocol 'other' \\(known: published, wider\\)"):
        replace(ORDER, protocol="other")


def test_what_is_held_out_is_never_drawn_to_learn_from() -> None:
    held = [draw(number, some_models(), seed=SEED, kind="judged-unseen") for number in range(60)]
    assert not {e.job.cluster.workers for e in held} & set(dataset.WORKERS)
    assert not {e.rates[0] for e in held} & set(dataset.RATES)


def test_groups_share_a_state_and_have_the_configs_that_ran_in_it() -> None:
    known = groups()
    assert len(known) == 4 * len(dataset.RATES) * dataset.VIEWS
    assert known.layer.shape[1:] == (ROWS, len(LAYER))
    assert known.candidate.shape[1:] == (dataset.PER_RATE, len(CANDIDATE))
    assert np.isfinite(known.step_s).all()
    assert (known.of_kind("varied").static[:, place("static", "other_model")] == 1).all()
    seen = known.bandwidth[:, place("bandwidth", "configs_seen")]
    assert set(seen[::2]) == {0.0}  # after one window; the other view is after three
    assert seen[1::2].min() > 0


def test_a_judged_job_has_the_truth_of_the_whole_grid() -> None:
    known = truth()
    assert known.step_s.shape == (1, 304)
    environment = draw(0, {"alexnet": models.load("alexnet")}, seed=SEED, kind="judged")
    job, config = environment.at(environment.rates[0]), Space().grid()[100]
    assert known.step_s[0, 100] == pytest.approx(truth_s(job, config, effects=environment.effects), rel=1e-6)


def test_groups_of_other_widths_are_joined() -> None:
    both = Groups.join([groups(), truth()])
    assert both.step_s.shape == (41, 304)
    assert np.isnan(both.step_s[0, 12:]).all()
    assert same(both[:40].of_kind("paper")[:1], Groups.join([groups().of_kind("paper")[:1], truth()])[:1])


def test_measured_windows_become_one_group_for_each_regime() -> None:
    job = Job(models.load("vgg16"), Cluster.uniform(8, 1.25e9))
    world = World(job, scenario=Scenario("slower", (Change(at=20, up=2e8, down=2e8),)))
    windows = [world.measure(config, iterations=10, warmup=2) for config in Space().grid()[160:165]]
    rows = measured(job.model, windows, number=7)
    assert np.isfinite(rows.step_s).sum(axis=1).tolist() == [2, 3]
    assert {KINDS[kind] for kind in rows.kind} == {"measured"}


def test_a_killed_collection_goes_on(tmp_path: Path) -> None:
    folder, made = Folder(tmp_path / "set"), groups()[:20]
    folder.begin(ORDER)
    names = [part.name for part in folder.missing(ORDER)]
    assert names == ["train-00000.npz", "judged-00000.npz", "judged-unseen-00000.npz"]
    folder.keep(names[0], made)
    (folder.path / f".{names[1]}").write_bytes(b"half")  # killed while writing
    again = Folder(tmp_path / "set")
    again.begin(ORDER)
    assert [part.name for part in again.missing(ORDER)] == names[1:]
    with pytest.raises(FileError, match=r"misses 2 parts; run the same `autobyte collect` again"):
        again.load("train")
    for name in names[1:]:
        again.keep(name, truth())
    assert same(again.load("train"), made)
    assert len(again.load("judged", "judged-unseen")) == 2


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    with pytest.raises(FileError, match="is no data set; make one with"):
        folder.load("train")
    folder.begin(ORDER)
    with pytest.raises(FileError, match="has environments 2, asked for was 4"):
        folder.begin(replace(ORDER, environments=4))
    (tmp_path / "dataset.json").write_text(json.dumps({"order": ORDER.to_json() | {"features": 99}}))
    with pytest.raises(FileError, match=r"features of schema 99; this version has \d+: collect anew"):
        folder.load("train")
    (tmp_path / "dataset.json").write_text("{")
    with pytest.raises(FileError, match="is damaged"):
        folder.begin(ORDER)
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("")
    with pytest.raises(FileError, match="holds something else"):
        Folder(other).begin(ORDER)


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.begin(ORDER)
    for part in folder.missing(ORDER):
        folder.keep(part.name, truth())
    (tmp_path / "train-00000.npz").write_bytes(b"PK\x03\x04 not a zip")
    with pytest.raises(FileError, match=r"train-00000\.npz is damaged"):
        folder.load("train")


@pytest.mark.parametrize(("name", "value"), [("environments", 1), ("judged", 0), ("seed", -1)])
def test_numbers_that_cannot_be_are_refused(name: str, value: int) -> None:
    with pytest.raises(InputError, match=f"{name} must be at least"):
        replace(ORDER, **{name: value})


@pytest.mark.parametrize("variant", ["improved", "paper"])
def test_weights_that_ship_name_the_data_that_they_were_fitted_to(variant: str) -> None:
    """Samples that they hold for rehearsal are those that their order draws, where the code still draws the same."""
    about = stored.about(stored.SHIPPED / f"{variant}.npz")["dataset"]
    order, number = about["order"], 4
    assert re.fullmatch("[0-9a-f]{16}", about["digest"])
    seen = {name: models.load(name) for name in about["models"]["seen"]}
    assert order["models"] == dataset.digest(seen)
    net, rehearsal = stored.network(variant)
    drawn = Part("train", number, number + 1, order["seed"]).make(seen, window, truth_s)
    states = order["environments"] * len(drawn)
    held = np.random.default_rng(0).choice(states, len(rehearsal), replace=False)
    its = np.flatnonzero(held // len(drawn) == number)
    assert len(its)
    for index in its:
        state = drawn[held[index] - number * len(drawn)]
        assert np.array_equal(np.float16(net.scored("candidate", state.candidate)), rehearsal.candidate[index])
        target = net.target(state.step_s, state.floor_s, state.samples)
        target = target if net.variant.speed else np.clip(target, -OUTLIER, OUTLIER)
        assert np.array_equal(np.float16(target), rehearsal.target[index])
