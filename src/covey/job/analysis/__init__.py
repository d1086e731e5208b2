"""Analysis: how skewed each client is, from a few gradients, without its data and without training (FedACS).

Clients receive a model and send what one full-batch step would change in its last layer (Wang et al. 2022, sections IV
and V). Nothing is trained. These insights give four results:

- `skew`: distance of a client's class mix from that of all clients, 0 to 1. For a freshly initialised model, the change
  of the last layer's bias is γ·(mean softmax - class shares), and the softmax hardly differs between clients. So half
  the summed distance from the mean bias is nearly the total variation distance of the class shares.
- `score`: the paper's Q_i = √M_i·‖Δw_i - mean Δw‖ (eq. 13). It measures evidence rather than a degree of skew: if sizes
  differ, √M_i ranks large clients before skewed ones. Scores of one model are comparable.
- `odd`: the class mix differs significantly, by Hoeffding's inequality where its range is known (`Confidence`).
- `outlier`: the insight differs in a way that the client's class mix does not explain, so labels or inputs differ from
  the others' (`unexplained`). Flipped labels leave a plausible class mix, and hardly change Q_i.

A trained model (`model_of`) answers another question. Where it is right, softmax and labels agree whatever the class
mix, and the bias carries no information about it; samples that it gets wrong, such as flipped labels, dominate Q_i. So
there `skew` is the distance ‖Δw_i - mean Δw‖, outliers are those of Q_i, and there is no bound: a trained model depends
on the samples that it is measured on.

Privacy: anyone who receives the insight of an untrained model can compute the client's class shares nearly exactly. No
sample leaves a client, but do not use this analysis where class shares are secret.
"""

from covey.job.analysis.analysis_job import ROUNDS, analyze
from covey.job.analysis.analysis_result import Analysis
from covey.job.analysis.confidence import bias_slot
from covey.job.analysis.outliers import STANDS_OUT

__all__ = ["ROUNDS", "STANDS_OUT", "Analysis", "analyze", "bias_slot"]
