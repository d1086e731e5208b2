"""Ten thousand damaged inputs: each runs, or is refused with a sentence."""

from pathlib import Path

import pytest

from tests.fuzz import assert_all_are_results_or_sentences


@pytest.mark.parametrize("seed", range(2, 7))
def test_ten_thousand_damaged_inputs_run_or_are_refused_with_a_sentence(seed: int, tmp_path: Path) -> None:
    assert_all_are_results_or_sentences(tmp_path, seed, count=2_000)
