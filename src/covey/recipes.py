"""The methods by name: which selector, aggregator and local objective each one combines."""

from covey.config.recipe import Recipe
from covey.registries import methods

for _name, _recipe in {
    "fedavg": Recipe("Uniform selection, average weighted by samples (McMahan et al. 2017)."),
    "fedprox": Recipe("FedAvg with a proximal term in the local objective (Li et al. 2020).", local={"proximal": 0.01}),
    "fedacs": Recipe(
        "Clients with little skew are found from last-layer insights and invited more often (Wang et al. 2022).",
        selector="fedacs",
    ),
    "oort": Recipe(
        "Clients that are useful and fast, with exploration (Lai et al. 2021), in full.",
        selector="oort",
    ),
    "oort-simple": Recipe(
        "Oort as the FedACS and NCCB papers compare with it: the highest training losses, once everyone was seen.",
        selector="oort-simple",
    ),
    "nccb": Recipe(
        "Clients that resemble each other teach about each other: a neural bandit on SimHash contexts (Cao et al.).",
        selector="nccb",
    ),
    "k-linucb": Recipe("A linear bandit on the same contexts.", selector="k-linucb"),
    "ondemand": Recipe(
        "FedAvg that also learns its clients' class shares, for models on demand (Jeong et al.).",
        aggregator="ondemand",
    ),
    "feddrl": Recipe(
        "A reinforcement-learning agent decides how much each update counts (Nguyen et al. 2022).",
        aggregator="feddrl",
    ),
    "feddrl-set": Recipe(
        "FedDRL with one network for every client of the round, whoever they are and however many.",
        aggregator="feddrl-set",
    ),
    "loss-softmax": Recipe(
        "Updates count more the higher the client's loss: what FedDRL must beat.", aggregator="loss-softmax"
    ),
    "rexp3": Recipe(
        "An adversarial bandit with restarts (Besbes et al. 2014) on FedACS's rewards.",
        selector="rexp3",
    ),
    "power-of-choice": Recipe(
        "Of some candidates, those with the highest loss (Cho et al. 2020).",
        selector="power-of-choice",
        weighing={"weighted": False},
    ),
    "cmfl": Recipe(
        "Clients upload only updates that point where the last global one did (Wang et al. 2019).",
        aggregator="cmfl",
    ),
    "cmfl-server": Recipe(
        "CMFL as the FedACS paper compares with it: updates that disagree with the round's mean are left out.",
        aggregator="cmfl-server",
    ),
    "central": Recipe(
        "SingleSet: all data in one place, plain SGD; what federation cannot expect to beat.",
        reshape=lambda federation, seed: federation.merged(),
        resident=True,
    ),
    "iid": Recipe(
        "FedAvg on the same clients with the skew taken out of their data: the IID reference.",
        reshape=lambda federation, seed: federation.without_skew(seed),
    ),
    "local-only": Recipe(
        "Every client trains alone, nothing is sent; what federation has to beat.",
        selector=None,
        aggregator=None,
        many="local-only",
    ),
    "cfl": Recipe(
        "Clustered federated learning: groups of clients whose updates disagree part (Sattler et al. 2019).",
        selector=None,
        aggregator=None,
        many="cfl",
    ),
    "mocha": Recipe(
        "Multi-task learning, convex: a last layer for each client, pulled together in the dual (Smith et al. 2017).",
        selector=None,
        aggregator=None,
        many="mocha",
    ),
    "mocha-deep": Recipe(
        "MOCHA's mean-regularised objective for any model: each client its own, pulled towards the mean of all.",
        selector=None,
        aggregator=None,
        many="mocha-deep",
    ),
    "fedfomo": Recipe(
        "Each client mixes the models of others that do better on its own validation samples (Zhang et al. 2021).",
        selector=None,
        aggregator=None,
        many="fedfomo",
    ),
}.items():
    methods.add(_name)(_recipe)
