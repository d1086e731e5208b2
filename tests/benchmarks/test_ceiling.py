import json

import pytest

from benchmarks.ceiling import ROOT, limits, needs, read_rows, table_of
from benchmarks.workloads import WORKLOADS

ROWS = read_rows(ROOT / "results" / "gpu.jsonl")


def test_the_least_work_of_a_small_cnn_is_what_one_counts_by_hand():
    found = needs(WORKLOADS["W6"], "bf16", momentum=False)
    layers = [2 * 6 * 75 * 28 * 28, 2 * 16 * 150 * 10 * 10, 2 * 400 * 120, 2 * 120 * 84, 2 * 84 * 10]
    # Images need no gradient.
    assert found.operations == 3 * sum(layers) - layers[0]
    # bf16: weights read twice, gradient written and read, float32 parameters read and written, their copy written.
    parameters = 62_006 * (2 * 2 + 2 * 2 + 2 * 4 + 2) / 50
    # The image is written once and read once; other inputs are written, read twice, and so are their gradients.
    inputs = 2 * (2 * 3 * 32 * 32 + 6 * (6 * 14 * 14 + 400 + 120 + 84))
    assert found.bytes == pytest.approx(parameters + inputs)
    assert found.gradient_bytes == pytest.approx(62_006 * 4 / 50)
    # Five layers forward and backward, and the update.
    assert found.kernels == 11


def test_momentum_and_higher_precision_move_more_bytes():
    plain, heavy = (needs(WORKLOADS["W2"], "bf16", momentum) for momentum in (False, True))
    assert heavy.bytes - plain.bytes == pytest.approx(62_006 * 8 / 400)
    assert needs(WORKLOADS["W2"], "tf32", momentum=False).bytes > plain.bytes


def test_the_words_of_an_lstm_wait_for_one_another_and_shortcuts_for_nobody():
    assert needs(WORKLOADS["W5"], "bf16", momentum=False).kernels == 2 * (2 * 10 + 1) + 1
    # The stem, sixteen convolutions of the blocks and the classifier.
    assert needs(WORKLOADS["W7"], "bf16", momentum=False).kernels == 2 * 18 + 1


def test_no_row_is_above_its_bound_and_shares_are_of_what_was_measured():
    for workload in WORKLOADS.values():
        found = limits(workload, ROWS)
        assert found["bound"] == min(found["by_memory"], found["by_arithmetic"]) <= found["fused"]
        assert (found["fastest"] or 0) < found["bound"]
    assert limits(WORKLOADS["W2"], ROWS)["alone"] == ROWS["covey-W2-bf16-1"]["samples_per_second"]
    assert limits(WORKLOADS["W2"], ROWS)["fastest"] == ROWS["covey-W2-bf16-10"]["samples_per_second"]


def test_the_stored_limits_are_those_of_the_workloads_and_rows_as_they_are():
    stored = json.loads((ROOT / "results" / "ceiling.json").read_text(encoding="utf-8"))
    assert stored == json.loads(json.dumps(table_of(ROWS))), "run: python benchmarks/ceiling.py"
