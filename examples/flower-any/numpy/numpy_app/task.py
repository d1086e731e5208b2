"""The model and the data, in NumPy alone."""

import numpy as np

FEATURES, CLASSES = 8, 4


def get_model() -> list[np.ndarray]:
    """Weights and biases of a softmax regression."""
    return [np.zeros((FEATURES, CLASSES)), np.zeros(CLASSES)]


def load_data(partition_id: int) -> tuple[np.ndarray, np.ndarray]:
    """A client's samples: points around a centre for each class; one class is frequent."""
    centres = np.random.default_rng(0).normal(size=(CLASSES, FEATURES))
    rng = np.random.default_rng(partition_id + 1)
    shares = np.full(CLASSES, 0.1)
    shares[partition_id % CLASSES] = 1 - 0.1 * (CLASSES - 1)
    y = rng.choice(CLASSES, size=60 + 5 * partition_id, p=shares)
    return centres[y] + rng.normal(size=(len(y), FEATURES)), y


def probabilities(model: list[np.ndarray], x: np.ndarray) -> np.ndarray:
    scores = x @ model[0] + model[1]
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def train(model: list[np.ndarray], x: np.ndarray, y: np.ndarray, steps: int, lr: float) -> list[np.ndarray]:
    """A few steps of gradient descent."""
    for _ in range(steps):
        residual = probabilities(model, x) - np.eye(CLASSES)[y]
        model = [model[0] - lr * x.T @ residual / len(y), model[1] - lr * residual.mean(axis=0)]
    return model


def test(model: list[np.ndarray], x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Mean loss and accuracy."""
    found = probabilities(model, x)
    loss = -np.log(found[np.arange(len(y)), y]).mean()
    return float(loss), float((found.argmax(axis=1) == y).mean())
