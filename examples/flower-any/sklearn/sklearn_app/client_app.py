"""The client: it knows Flower and scikit-learn, and nothing of Covey."""

import warnings

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.metrics import log_loss

from sklearn_app.task import LABELS, create_model, get_model_params, load_data, set_model_params

app = ClientApp()


def received_model(msg: Message, context: Context):
    model = create_model(context.run_config["penalty"], context.run_config["local-epochs"])
    set_model_params(model, msg.content["arrays"].to_numpy_ndarrays())
    return model


@app.train()
def train(msg: Message, context: Context) -> Message:
    model = received_model(msg, context)
    x, y, _, _ = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    with warnings.catch_warnings():
        # A few iterations do not converge, and need not.
        warnings.simplefilter("ignore")
        model.fit(x, y)
    loss = log_loss(y, model.predict_proba(x), labels=LABELS)
    metrics = {"num-examples": len(x), "train_logloss": loss, "train_accuracy": model.score(x, y)}
    content = RecordDict({"arrays": ArrayRecord(get_model_params(model)), "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    model = received_model(msg, context)
    _, _, x, y = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    loss = log_loss(y, model.predict_proba(x), labels=LABELS)
    metrics = {"num-examples": len(x), "test_logloss": loss, "accuracy": model.score(x, y)}
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
