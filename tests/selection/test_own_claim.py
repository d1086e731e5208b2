"""One seed and setting of the claim that `tests/proof/test_own_method.py` makes over ten."""

import pytest

from tests.proof.test_own_method import OURS, RIVALS, SEEDS, late_accuracies


@pytest.mark.slow
def test_in_a_clustered_federation_covey_is_ahead_of_all(tmp_path):
    found = late_accuracies("clustered", SEEDS[:1], tmp_path)
    for rival in RIVALS:
        assert found[OURS][0] > found[rival][0] + 0.005, rival
