"""What a model on demand is: its mix, the clients it was trained on, its accuracy, and what protects their data."""

from collections.abc import Iterable, Mapping
from typing import Any

from covey.serve.job_record import Job


def spent_by_base(jobs: Iterable[Job]) -> dict[str, float]:
    """Return base → ε that the clients' answers for all models of it have spent together; none without noise."""
    spent: dict[str, float] = {}
    for job in jobs:
        if job.request["kind"] == "ondemand" and job.result and (epsilon := _epsilon(job)) is not None:
            spent[job.request["base"]] = spent.get(job.request["base"], 0.0) + epsilon
    return spent


def _epsilon(job: Job) -> float | None:
    dp = job.result["insight_dp"]
    return None if dp is None else float(str(dp).split(",")[0])


def model_facts(job: Job, spent: Mapping[str, float]) -> dict[str, Any]:
    """Return what a model is, for JSON. ε is None where there is no differential privacy."""
    result, one = job.result, job.result["targets"][0]
    base, tuning = result.get("base_privacy"), one.get("privacy")
    return {
        "job": job.id,
        "base": job.request["base"],
        "base_round": result["base_round"],
        "target": one["mix"],
        "mix": one["composed_mix"],
        "true_mix": one["true_mix"],
        "distance": one["distance"],
        "class_names": result["class_names"],
        "clients": one["clients"],
        "ratios": one["ratios"],
        "without": result.get("without", []),
        "epsilon": _epsilon(job),
        "epsilon_of_all_models": spent.get(job.request["base"]),
        "base_epsilon": base and base["epsilon"],
        "tuning_epsilon": tuning and tuning["epsilon"],
        "privacy": _privacy(result["insight_dp"], base, tuning),
        "accuracy": one["accuracy"],
        "base_accuracy": one["base_accuracy"],
        "rounds": one["rounds"],
        "notes": [*result["notes"], *one["notes"]],
    }


def _privacy(answers: str | None, base: Mapping[str, Any] | None, tuning: Mapping[str, Any] | None) -> str:
    """Return in a sentence what is differentially private in a model, and what is not."""
    if answers is None and not base and not tuning:
        return "No differential privacy: the model may reveal what it was trained on."
    asked = None
    if answers is not None:
        epsilon, delta = (float(part) for part in answers.split(","))
        asked = {"epsilon": epsilon, "delta": delta}
    parts = (("The base model", base), ("the clients' answers", asked), ("the fine-tuning", tuning))
    said = ", ".join(f"{what}: {_budget(found)}" for what, found in parts)
    reveals = "" if tuning else " The model may reveal what it was fine-tuned on."
    return f"{said}.{reveals}"


def _budget(found: Mapping[str, Any] | None) -> str:
    return f"ε = {found['epsilon']:.3g} at δ = {found['delta']:g}" if found else "no differential privacy"
