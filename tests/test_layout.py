"""One name, one thing: of classes, and of a file and its tests."""

import ast
from collections import defaultdict
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parent.parent

#: Files of `autobyte/` without a test file of their name, by the file in `tests/` that covers them. The tests of
#: `autobyte/a/b.py` are in `tests/a/test_b.py`; `a/*` is all of a folder that has no file there.
COVERED_BY = {
    "cli/test_cli.py": "cli/compare.py cli/console.py cli/convert.py cli/files.py cli/models.py cli/options.py "
    "cli/profile.py cli/report.py cli/simulate.py",
    "cli/test_collect.py": "cli/fit.py cli/workers.py nets/checkpoint.py nets/stored.py",
    "torch/exchange/test_training.py": "exchange/names.py exchange/tuning/subject.py torch/exchange/admission.py",
    "torch/exchange/test_exchange.py": "torch/exchange/listener.py torch/exchange/refusals.py "
    "torch/exchange/tallies.py",
    "exchange/test_rollcall.py": "torch/exchange/lookout.py",
    "cli/test_congestion.py": "congestion/datapath/beside.py congestion/record.py",
    "congestion/algos/test_algos.py": "congestion/algos/*",
    "congestion/datapath/test_measure.py": "congestion/datapath/tunnel.py",
    "congestion/datapath/test_outgoing.py": "congestion/datapath/incoming.py congestion/datapath/wire.py",
    "comparison/test_oracle.py": "comparison/contest.py comparison/truth.py comparison/verdict.py",
    "comparison/test_overview.py": "comparison/panels/cost.py",
    "comparison/test_page.py": "comparison/outcome.py comparison/panels/timeline.py comparison/repeat.py "
    "comparison/table.py",
    "comparison/test_plot.py": "comparison/panels/labels.py comparison/panels/landscape.py comparison/panels/look.py "
    "comparison/panels/regret.py comparison/title.py",
    "comparison/test_policies.py": "cli/policies.py simulator/choose.py",
    "comparison/test_preference.py": "comparison/thrift.py",
    "exchange/test_averaging.py": "exchange/arrays.py exchange/connection.py exchange/times.py",
    "features/test_features.py": "features/*",
    "test_explain.py": "cli/explain.py",
    "integrations/test_lightning.py": "integrations/closures.py",
    "keras/tensorflow/test_model.py": "keras/callbacks.py keras/processes.py keras/wrap.py keras/wrapped.py "
    "keras/tensorflow/gradients.py keras/tensorflow/tape.py keras/tensorflow/updates.py",
    "models/test_models.py": "models/network.py models/ops.py models/profile.py models/roofline.py "
    "models/transformers.py models/vision.py",
    "nets/test_dataset.py": "nets/collection.py simulator/observe.py",
    "nets/test_metanet.py": "nets/backend.py nets/forward.py nets/lstm.py",
    "scheduler/policies/test_usbyte.py": "scheduler/optimum.py scheduler/policies/unequal.py "
    "scheduler/policies/unequal_fused.py",
    "scheduler/engines/test_carried.py": "scheduler/engines/carrier.py scheduler/engines/mxnet_store.py",
    "scheduler/test_block.py": "scheduler/plan.py",
    "scheduler/test_engines.py": "scheduler/engines/abandoned.py scheduler/engines/allreduce.py "
    "scheduler/engines/base.py "
    "scheduler/engines/leader.py testing/engine.py testing/fakes.py testing/memory.py",
    "scheduler/test_policies.py": "scheduler/policies/base.py scheduler/policies/bytescheduler.py "
    "scheduler/policies/ddp.py scheduler/policies/fifo.py scheduler/policies/p3.py scheduler/policies/tictac.py "
    "scheduler/policies/wfbp.py",
    "scheduler/test_policies_merging.py": "scheduler/policies/horovod.py scheduler/policies/megatron.py "
    "scheduler/policies/mgwfbp.py scheduler/policies/published.py",
    "simulator/test_calibrate.py": "cli/calibrate.py",
    "simulator/test_diagnose.py": "cli/doctor.py",
    "simulator/test_kernel.py": "simulator/loop.py simulator/simulation.py",
    "simulator/test_landscape.py": "comparison/worlds.py",
    "simulator/test_simulate.py": "simulator/costs.py simulator/effects.py simulator/network.py simulator/worker.py",
    "simulator/test_world.py": "simulator/clock.py",
    "testbed/test_hosts.py": "testbed/namespaces.py",
    "testbed/test_testbed_bench.py": "bench/bench.py bench/cell.py bench/plot.py bench/policies.py cli/bench.py",
    "testbed/test_testbed_rehearsal.py": "bench/rank.py bench/records.py",
    "testbed/test_testbed_calibration.py": "bench/calibration.py",
    "testbed/test_testbed_cli.py": "cli/testbed.py",
    "testbed/test_testbed_frontends.py": "bench/byteps_rank.py bench/front_rank.py bench/frontends.py "
    "bench/horovod_rank.py bench/keras_rank.py bench/mxnet_rank.py bench/servers.py bench/torch_loop.py "
    "cli/frontends.py",
    "testbed/test_testbed_grid.py": "bench/grid.py cli/record.py",
    "testbed/test_testbed_links.py": "testbed/changes.py testbed/flows.py testbed/load.py testbed/validity.py",
    "testbed/test_testbed_priority.py": "bench/priority.py",
    "testbed/test_testbed_validation.py": "bench/validation.py cli/validate.py",
    "torch/test_handover.py": "torch/exchange/reduction.py",
    "torch/test_arguments.py": "exchange/arguments.py",
    "torch/test_optimizer.py": "torch/listening.py torch/on.py",
    "torch/model/test_updates.py": "torch/model/elementwise.py torch/model/held.py",
    "torch/test_optimizer_clipping.py": "torch/clips.py",
    "tuners/test_contract.py": "testing/tuner.py tuners/base.py tuners/fixed.py tuners/grid.py tuners/random.py",
    "tuners/metanet/test_tuner.py": "tuners/metanet/network.py tuners/metanet/predictor.py tuners/metanet/trained.py",
    "tuners/test_searching.py": "tuners/bayesian.py tuners/descent.py tuners/optuna.py tuners/optuna_cmaes.py",
    "tuners/twin/test_tuner.py": "tuners/twin/calibration.py tuners/twin/expectations.py "
    "tuners/twin/predictor.py tuners/twin/torn.py",
}


def test_a_files_tests_are_found_by_its_name() -> None:
    files = [file.relative_to(ROOT / "autobyte") for file in (ROOT / "autobyte").rglob("*.py")]
    names = {file for file in files if file.name not in ("__init__.py", "__main__.py")}
    nameless = {str(file) for file in names if not (ROOT / "tests" / file.parent / f"test_{file.name}").exists()}
    listed = {pattern: test for test, patterns in COVERED_BY.items() for pattern in patterns.split()}
    missing = [test for test in COVERED_BY if not (ROOT / "tests" / test).exists()]
    assert not missing, f"COVERED_BY names {missing}, which are not in tests/"
    unlisted = sorted(name for name in nameless if not any(fnmatch(name, pattern) for pattern in listed))
    assert not unlisted, f"write tests/…/test_….py for {unlisted}, or say in COVERED_BY which file has their tests"
    stale = sorted(pattern for pattern in listed if not any(fnmatch(name, pattern) for name in nameless))
    assert not stale, f"take {stale} out of COVERED_BY: they are gone, or have a test file of their name"


def test_no_two_classes_share_a_name() -> None:
    files = defaultdict(list)
    for path in sorted((ROOT / "autobyte").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                files[node.name].append(str(path.relative_to(ROOT / "autobyte")))
    assert len(files) > 100
    assert {name: places for name, places in files.items() if len(places) > 1} == {}
