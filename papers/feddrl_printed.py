"""What the FedDRL paper prints: Table 3 and Table 4, best top-1 accuracy in percent.

Its CIFAR-100 figures are no target: the authors' runs under that name trained on CIFAR-10 images with lists of samples
made for CIFAR-100, as their logs say and the maxima in these logs confirm, so that clients were close to IID.
"""

from collections.abc import Mapping

from papers.store import CENTRAL

_TABLE_3 = {
    # (data, clients): method → PA, CE, CN
    ("cifar100", 10): {
        CENTRAL: (75.63, 68.6, 72.67),
        "fedavg": (69.81, 62.18, 64.6),
        "fedprox": (71.13, 62.25, 66.8),
        "feddrl": (72.63, 64.51, 67.32),
    },
    ("cifar100", 100): {
        CENTRAL: (64.55, 71.26, 68.73),
        "fedavg": (58.29, 60.95, 58.17),
        "fedprox": (56.03, 55.55, 60.53),
        "feddrl": (58.41, 61.12, 61.51),
    },
    ("fashion", 10): {
        CENTRAL: (90.06, 88.9, 88.48),
        "fedavg": (86.19, 82.49, 82.97),
        "fedprox": (86.54, 82.52, 82.43),
        "feddrl": (86.92, 82.59, 84.26),
    },
    ("fashion", 100): {
        CENTRAL: (88.9, 88.60, 88.35),
        "fedavg": (85.57, 84.88, 83.82),
        "fedprox": (86.36, 84.78, 83.89),
        "feddrl": (86.65, 86.71, 86.69),
    },
    ("mnist", 10): {
        CENTRAL: (97.65, 98.87, 99.01),
        "fedavg": (89.58, 98.13, 97.98),
        "fedprox": (97.23, 96.89, 96.88),
        "feddrl": (97.31, 98.13, 98.08),
    },
    ("mnist", 100): {
        CENTRAL: (99.19, 98.79, 98.82),
        "fedavg": (98.43, 97.9, 98.22),
        "fedprox": (98.20, 97.95, 98.13),
        "feddrl": (98.63, 98.03, 98.27),
    },
}

_TABLE_4 = {
    # (data, clients): method → Equal, Non-equal
    ("cifar100", 10): {
        CENTRAL: (81.16, 81.56),
        "fedavg": (75.52, 75.5),
        "fedprox": (70.18, 76.65),
        "feddrl": (76.65, 76.9),
    },
    ("cifar100", 100): {
        CENTRAL: (81.34, 81.59),
        "fedavg": (72.71, 72.44),
        "fedprox": (72.52, 72.89),
        "feddrl": (73.47, 73.42),
    },
}


def printed(data: str, clients: int, split: str) -> Mapping[str, float]:
    """Method → best accuracy in percent; {} for what the paper does not have."""
    for table, splits in ((_TABLE_3, ("pa", "ce", "cn")), (_TABLE_4, ("equal", "unequal"))):
        if split in splits and (data, clients) in table:
            return {method: row[splits.index(split)] for method, row in table[data, clients].items()}
    return {}


DECISION_SECONDS = 0.003
"""Figure 9: the agent's decision."""

AGGREGATION_SECONDS = {"VGG-11": 0.045, "CNN": 0.003}
"""Figure 9: aggregation."""
