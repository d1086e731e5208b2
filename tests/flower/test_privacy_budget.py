"""A client's budget of differential privacy: it is counted before every answer, and kept over restarts."""

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord
from torch import Tensor

from covey import Refusal
from covey.data.dataset import Samples
from covey.flower import InProcessGrid, Protection, Strategy, client_app
from covey.flower.node_work import Client
from covey.flower.privacy_ledger import Ledger
from covey.probe.class_query import ClassQuery, Privacy
from covey.probe.insight import Insight
from covey.probe.losses import Losses
from tests.flower.test_privacy_against_server import NOISY, asked
from tests.flower.test_protection import a_learner, net, points


def with_budget(path: Path, budget: str = "10,1e-5", **options: Any) -> Client:
    learner, samples = a_learner()
    options = {"insight": "1,1e-5", **options}
    return Client(learner, samples, protection=Protection(budget=budget, ledger=path, **options))


def queries(client: Client, count: int, **changes: Any) -> int:
    """Return how many of so many orders a client answers."""
    answered, reasons = 0, set()
    for _ in range(count):
        try:
            asked(client, **{"train": False, "probes": (ClassQuery("bias"),), **changes})
            answered += 1
        except Refusal as refusal:
            reasons.add(str(refusal))
    assert all("privacy budget (ε = " in reason for reason in reasons)
    return answered


def test_of_three_thousand_queries_a_client_answers_as_many_as_its_budget_allows(tmp_path):
    answered = queries(with_budget(tmp_path / "privacy.json"), 3000)
    each = Privacy(1, 1e-5)
    assert each.after(answered) <= 10 < each.after(answered + 1)
    assert answered > 10
    kept = Ledger(tmp_path / "privacy.json", Privacy(10, 1e-5))
    assert kept.epsilon == pytest.approx(each.after(answered))


def test_a_budget_is_kept_over_restarts_in_a_file_of_the_client_alone(tmp_path):
    path = tmp_path / "privacy.json"
    whole = queries(with_budget(tmp_path / "other.json"), 100)
    assert queries(with_budget(path), 7) == 7
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert queries(with_budget(path), 100) == whole - 7
    assert queries(with_budget(path), 3) == 0
    told = json.loads(path.read_text())
    assert told["answers"] == whole
    assert told["epsilon"] <= 10
    assert queries(with_budget(path, "20,1e-5"), 1) == 1


def test_a_budget_of_one_answer_allows_one(tmp_path):
    assert queries(with_budget(tmp_path / "a", "1,1e-5"), 3) == 1
    assert queries(with_budget(tmp_path / "b", "0.99,1e-5"), 3) == 0


def test_updates_and_measurements_are_paid_from_one_budget(tmp_path):
    path = tmp_path / "privacy.json"
    client = with_budget(path, "10,1e-5", update="2,1e-5", update_clip=1.0)
    asked(client, probes=(ClassQuery("bias"), Insight(0.1)))
    spent = json.loads(path.read_text())["spent"]
    assert spent == pytest.approx(Privacy(2, 1e-5).deviation ** -2 + 2 * Privacy(1, 1e-5).deviation ** -2)
    asked(client, returns=False)
    assert json.loads(path.read_text())["spent"] == spent


def test_an_answer_is_paid_before_it_is_computed_and_a_declined_one_is_not(tmp_path):
    path = tmp_path / "privacy.json"
    seen: list[int] = []

    def fit(task: Any, received: Tensor, part: Samples) -> tuple[Tensor, float]:
        seen.append(json.loads(path.read_text())["answers"])
        return received, 0.0

    client = replace(with_budget(path, update="1,1e-5", update_clip=1.0), fit=fit)
    asked(client)
    assert seen == [1]
    with pytest.raises(Refusal, match="none for this: losses"):
        asked(client, probes=(Losses(),))
    assert json.loads(path.read_text())["answers"] == 1


DAMAGED = (
    *("", "{", "[]", "[" * 100_000, '{"spent": -1, "answers": 0}', '{"spent": "NaN", "answers": 0}'),
    f'{{"spent": 1{"0" * 400}, "answers": 0}}',
)


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_ledger_ends_all_noisy_answers(tmp_path, text):
    path = tmp_path / "privacy.json"
    path.write_text(text)
    with pytest.raises(Refusal, match="cannot read what it has told so far"):
        asked(with_budget(path), train=False, probes=(ClassQuery("bias"),))
    assert path.read_text() == text


def test_a_ledger_that_cannot_be_opened_is_not_one_that_is_empty(tmp_path):
    path = tmp_path / "privacy.json"
    path.symlink_to(path)
    with pytest.raises(Refusal, match="cannot read what it has told so far"):
        asked(with_budget(path), train=False, probes=(ClassQuery("bias"),))


def test_a_client_that_cannot_write_its_ledger_tells_nothing(tmp_path):
    with pytest.raises(Refusal, match="tells nothing"):
        asked(with_budget(tmp_path / "no folder" / "x"), train=False, probes=(ClassQuery("bias"),))


def test_orders_answered_at_the_same_time_are_all_counted(tmp_path):
    ledger = Ledger(tmp_path / "privacy.json", Privacy(10, 1e-5))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: ledger.charge(1e-4), range(64)))
    told = json.loads(ledger.path.read_text())
    assert told["answers"] == 64
    assert told["spent"] == pytest.approx(64e-4)


def test_clients_of_one_app_have_a_budget_each(tmp_path):
    def rules(context: Any) -> Protection:
        name = f"{context.node_config['partition-id']}.json"
        return replace(NOISY, update="1,1e-5", budget="1.2,1e-5", ledger=tmp_path / name)

    app = client_app(net, lambda context: points(int(context.node_config["partition-id"])), threads=1, protection=rules)
    strategy = Strategy("fedavg", model=net(), clients=3, cohort=3, local={"epochs": 1}, strikes=0)
    strategy.start(InProcessGrid(app, 3), ArrayRecord(net().state_dict()), num_rounds=3)
    assert [len(entry["answered"]) for entry in strategy.history] == [3, 0, 0]
    assert "privacy budget" in strategy.history[1]["faults"][0]["reason"]
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["0.json", "1.json", "2.json"]
