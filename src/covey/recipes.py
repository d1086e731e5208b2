"""The methods by name, each a combination of selector, aggregator and trainer."""

from covey.config.recipe import Recipe
from covey.registries import methods

NCCB_AUTHORS = {
    "estimator": "authors",
    "schedule": "authors",
    "gamma": 0.0125,
    "ridge": 1.0,
    "window": 11,
    "train": "reward",
    "reward": "total",
}
"""Options of NCCB in its authors' code, where they differ from the defaults.

Their rewards are not scaled and reach about 80 (batches times the root of the loss); Covey's are over the greatest so
far, so γ is 1/80 of theirs. Three things cannot be set: their loss is not squared, their estimator has dropout of 0.2
and no pull towards its start, and places beyond exploration go to the lowest of the highest bounds.
"""

COVEY_SERVER = {"optimizer": "momentum", "beta": 0.9, "rate": 0.3, "halving": 2.0}
COVEY_AVERAGING = {"ema": 0.95}
"""The server's half of the method `covey`."""

for _name, _recipe in {
    "covey": Recipe(
        "Balanced cohorts, momentum on the server and an average over rounds: Covey's own method.",
        selector="balanced",
        server=COVEY_SERVER,
        averaging=COVEY_AVERAGING,
    ),
    "fedavg": Recipe("Invites uniformly and averages models by their samples (McMahan et al. 2017)."),
    "fedprox": Recipe("FedAvg with a proximal term in the local objective (Li et al. 2020).", local={"proximal": 0.01}),
    "fedavgm": Recipe("FedAvg with momentum on the server (Hsu et al. 2019).", server={"optimizer": "momentum"}),
    "fedadam": Recipe("FedAvg with Adam on the server (Reddi et al. 2021).", server={"optimizer": "adam"}),
    "fedyogi": Recipe("FedAvg with Yogi on the server (Reddi et al. 2021).", server={"optimizer": "yogi"}),
    "fedadagrad": Recipe("FedAvg with Adagrad on the server (Reddi et al. 2021).", server={"optimizer": "adagrad"}),
    "qffl": Recipe(
        "Updates of clients with high loss count more, for a model that serves clients evenly (Li et al. 2020).",
        aggregator="qffl",
    ),
    "scaffold": Recipe(
        "Takes out clients' drift by control variates that they keep (Karimireddy et al. 2020).",
        trainer="scaffold",
        weighing={"weighted": False},
    ),
    "feddyn": Recipe(
        "Regularises each client by its past gradients, so that clients agree in the end (Acar et al. 2021).",
        trainer="feddyn",
        weighing={"weighted": False},
    ),
    "fednova": Recipe("Normalises updates by the length of clients' steps (Wang et al. 2020).", trainer="fednova"),
    "fedcm": Recipe("Clients follow the mean direction of the last round (Xu et al. 2021).", trainer="fedcm"),
    "moon": Recipe(
        "Contrasts each client's features with the global model's and its last one's (Li et al. 2021).",
        trainer="moon",
    ),
    "fedlc": Recipe("Calibrates logits by the client's own class counts (Zhang et al. 2022).", trainer="fedlc"),
    "fedsam": Recipe("Clients look for flat minima (Qu et al. 2022).", trainer="fedsam"),
    "fedacs": Recipe(
        "Invites clients with little skew, found by comparing last-layer insights (Wang et al. 2022).",
        selector="fedacs",
    ),
    "oort": Recipe(
        "Invites clients that are useful and fast, with exploration; the full Oort (Lai et al. 2021).",
        selector="oort",
    ),
    "oort-simple": Recipe(
        "Invites clients with the highest training losses: Oort as the FedACS and NCCB papers compare with it.",
        selector="oort-simple",
    ),
    "fed-cbs": Recipe(
        "Draws cohorts in proportion to the balance of their joint classes (Zhang et al. 2023).", selector="fed-cbs"
    ),
    "hics-fl": Recipe(
        "Samples clusters of clients by updates of the last layer's bias, balanced ones first (Chen and Vikalo 2024).",
        selector="hics-fl",
        weighing={"weighted": False},
    ),
    "fedcor": Recipe(
        "Invites the clients whose training should lower all losses most, by a Gaussian process (Tang et al. 2022).",
        selector="fedcor",
    ),
    "fedentopt": Recipe(
        "Invites cohorts whose labels together have the highest entropy (Lutz et al. 2024).", selector="fedentopt"
    ),
    "nccb": Recipe(
        "Invites useful clients by a neural bandit on contexts, which learns across similar clients (Cao et al. 2022).",
        selector="nccb",
    ),
    "nccb-authors": Recipe(
        "NCCB with the values of its authors' code, which differ from the paper's; it learns after every reward.",
        selector="nccb",
        selecting=NCCB_AUTHORS,
    ),
    "k-linucb": Recipe(
        "Invites useful clients by a linear bandit on SimHash contexts (Li et al. 2010).", selector="k-linucb"
    ),
    "ondemand": Recipe(
        "FedAvg that also estimates its clients' class shares, for models on demand (Jeong and Lee 2024).",
        aggregator="ondemand",
    ),
    "feddrl": Recipe(
        "A reinforcement-learning agent decides how much each model counts (Nguyen et al. 2022).",
        aggregator="feddrl",
    ),
    "feddrl-set": Recipe(
        "FedDRL with one network for all clients, in any order and number.",
        aggregator="feddrl-set",
    ),
    "loss-softmax": Recipe(
        "Models count more the higher the client's loss: the control that FedDRL must beat.", aggregator="loss-softmax"
    ),
    "rexp3": Recipe(
        "Invites by an adversarial bandit with restarts on FedACS's rewards (Besbes et al. 2014).",
        selector="rexp3",
    ),
    "power-of-choice": Recipe(
        "Invites those of some random candidates that have the highest loss (Cho et al. 2020).",
        selector="power-of-choice",
        weighing={"weighted": False},
    ),
    "cmfl": Recipe(
        "Clients upload only updates that agree in sign with the last global one (Wang et al. 2019).",
        aggregator="cmfl",
    ),
    "cmfl-server": Recipe(
        "The server drops updates that disagree with the round's mean: CMFL as the FedACS paper compares with it.",
        aggregator="cmfl-server",
    ),
    "central": Recipe(
        "SGD on all data in one place (SingleSet): the upper reference for federation.",
        reshape=lambda federation, seed: federation.merged(),
        resident=True,
    ),
    "iid": Recipe(
        "FedAvg on the same clients with the skew removed from their data: the IID reference.",
        reshape=lambda federation, seed: federation.without_skew(seed),
    ),
    "local-only": Recipe(
        "Every client trains alone and sends nothing: the lower reference for federation.",
        selector=None,
        aggregator=None,
        many="local-only",
    ),
    "cfl": Recipe(
        "Clustered federated learning: splits groups of clients whose updates disagree (Sattler et al. 2019).",
        selector=None,
        aggregator=None,
        many="cfl",
    ),
    "mocha": Recipe(
        "Convex multi-task learning: a last layer for each client, fitted jointly in the dual (Smith et al. 2017).",
        selector=None,
        aggregator=None,
        many="mocha",
    ),
    "mocha-deep": Recipe(
        "MOCHA's mean-regularised objective for any model: one per client, pulled towards the mean of all.",
        selector=None,
        aggregator=None,
        many="mocha-deep",
    ),
    "fedfomo": Recipe(
        "Each client mixes the models that do better on its own validation samples (Zhang et al. 2021).",
        selector=None,
        aggregator=None,
        many="fedfomo",
    ),
    "fedbn": Recipe(
        "Normalisation layers stay with each client, and the rest is averaged (Li et al. 2021).",
        selector=None,
        aggregator=None,
        many="fedbn",
    ),
    "fedper": Recipe(
        "The last layers stay with each client, and the rest is averaged (Arivazhagan et al. 2019).",
        selector=None,
        aggregator=None,
        many="fedper",
    ),
    "fedrep": Recipe(
        "Clients fit heads of their own to a shared body, then improve the body (Collins et al. 2021).",
        selector=None,
        aggregator=None,
        many="fedrep",
    ),
    "ditto": Recipe(
        "Beside FedAvg's model, each client trains its own, pulled towards the global one (Li et al. 2021).",
        selector=None,
        aggregator=None,
        many="ditto",
    ),
}.items():
    methods.add(_name)(_recipe)
