"""The model and the data."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

LABELS = list(range(10))
FEATURES = 64


def create_model(penalty: str, local_epochs: int) -> LogisticRegression:
    """A logistic regression that is trained further from the parameters it has."""
    model = LogisticRegression(C=1.0 if penalty == "l2" else 1e6, max_iter=local_epochs, warm_start=True)
    model.classes_ = np.array(LABELS)
    model.coef_ = np.zeros((len(LABELS), FEATURES))
    model.intercept_ = np.zeros(len(LABELS))
    return model


def get_model_params(model: LogisticRegression) -> list[np.ndarray]:
    return [model.coef_, model.intercept_]


def set_model_params(model: LogisticRegression, params: list[np.ndarray]) -> None:
    model.coef_, model.intercept_ = params


def load_data(partition_id: int, num_partitions: int):
    """A client's training and test samples; every client has all classes, as this model needs."""
    x, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    places = rng.permutation(len(y))
    mine = places[partition_id::num_partitions]
    cut = len(mine) // 5
    return x[mine[cut:]] / 16, y[mine[cut:]], x[mine[:cut]] / 16, y[mine[:cut]]
