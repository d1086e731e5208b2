from covey.job.demo import OddClients, find_odd_clients
from covey.page.demo_page import odd_figure


def drawn(odd: OddClients) -> dict[str, list[int]]:
    """Return kind of client → clients that the chart names so."""
    found: dict[str, list[int]] = {}
    for trace in odd_figure(odd).charts[0].data:
        for text in trace.get("customdata", []):
            client, _, kind = text.removeprefix("client ").partition(", ")
            found.setdefault(kind, []).append(int(client))
    return {kind: sorted(clients) for kind, clients in found.items()}


def test_the_chart_tells_right_findings_from_wrong_ones():
    odd = find_odd_clients(0)
    first, *others = odd.flipped
    missed = next(client for client in range(60) if client not in odd.found)
    found = drawn(OddClients(odd.analysis, tuple(sorted([*others, missed]))))
    assert found["stands out, labels flipped"] == others
    assert found["stands out, labels sound"] == [first]
    assert found["labels flipped, unnoticed"] == [missed]
    assert sum(map(len, found.values())) == 60


def test_every_client_that_stands_out_is_named():
    odd = find_odd_clients(0)
    named = [text for trace in odd_figure(odd).charts[0].data for text in trace.get("text", []) if text]
    assert sorted(named) == sorted(f"<b>{client}</b>" for client in odd.found)
