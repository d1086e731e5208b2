"""Verdicts on claims."""

import pytest

from covey.job.comparison.statistics import Estimate
from papers.claims import Claim, Gain, claims_table, gain_claim
from papers.page import Table


def gain(low, high, claimed=None, place="here:") -> Gain:
    middle = (low + high) / 2
    return Gain(place, Estimate(middle, middle, low, high), claimed)


@pytest.mark.parametrize(
    ("low", "high", "claimed", "verdict"),
    [
        (0.01, 0.03, 2.0, "holds"),
        (0.01, 0.03, None, "holds"),
        (0.01, 0.03, 5.0, "holds in part"),
        (-0.01, 0.03, 2.0, "open"),
        (-0.01, 0.03, None, "open"),
        (-0.01, 0.01, 2.0, "does not hold"),
        (-0.03, -0.01, None, "does not hold"),
    ],
)
def test_a_gain_is_judged_by_its_interval_and_the_printed_one(low, high, claimed, verdict):
    assert gain(low, high, claimed).verdict == verdict


def test_a_claim_holds_in_part_where_places_differ_and_says_where_it_was_not_tested():
    untested = Gain("there:", None, 1.0)
    claim = gain_claim("More accurate", [gain(0.01, 0.03, 2.0), gain(-0.03, -0.01, 2.0, "elsewhere:"), untested])
    assert claim.verdict == "holds in part"
    assert claim.found == "here: +2.00 ± 1.00 (paper +2.00); elsewhere: -2.00 ± 1.00 (paper +2.00); not tested: there"
    assert gain_claim("More", [gain(-0.01, 0.03), gain(-0.03, -0.01)]).verdict == "does not hold"
    assert gain_claim("More", [gain(-0.01, 0.03), gain(-0.02, 0.04)]).verdict == "open"
    assert gain_claim("More", [gain(0.01, 0.03), gain(0.02, 0.03)]).verdict == "holds"


def test_one_seed_tests_nothing_and_is_shown():
    claim = gain_claim("More", [Gain("here:", Estimate.of([0.02]), 1.0), Gain("there:", None)])
    assert (claim.verdict, claim.found) == ("not tested", "here: +2.00 (paper +1.00), one seed")
    assert gain_claim("More", [Gain("there:", None)]).found == ""


def test_the_table_explains_its_verdicts():
    heading, table, legend = claims_table([Claim("A is more", "open", "+1"), Claim("B is less", "not tested")])
    assert heading == "## Claims"
    assert isinstance(table, Table)
    assert table.rows == [["A is more", "**open**", "+1"], ["B is less", "**not tested**", "-"]]
    assert "open: these seeds exclude neither" in str(legend).lower()
    assert "holds in part" not in str(legend).lower()
