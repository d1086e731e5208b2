"""How skewed each client is, without its data and without training: FedACS's federated analytics as a job of its own.

Clients receive a model and send what one full-batch step would change in its last layer (Wang et al. 2022, sections IV
and V). Nobody trains. Four things are read from these insights:

- `skew`: how far a client's class mix is from everyone's, 0 to 1. With a freshly initialised model the change of the
  last layer's bias is γ·(mean softmax - class shares), and the softmax hardly differs between clients, so half the
  summed distance from the mean bias is nearly the total variation distance of the class shares.
- `score`: the paper's Q_i = √M_i·‖Δw_i - mean Δw‖ (eq. 13). It is evidence rather than a degree of skew: among clients
  of different sizes, √M_i ranks the large before the skewed. One model's scores are comparable.
- `odd`: the class mix provably differs, by Hoeffding's inequality where its range is known (`Confidence`).
- `outlier`: the insight differs in a way that the client's class mix does not explain, so labels or inputs differ from
  the others' (`unexplained`). Flipped labels leave a class mix as plausible as any, and hardly move Q_i.

A model that was trained (`model_of`) answers another question. Where it is right, softmax and labels agree whatever
the class mix, and the bias says nothing about it any more; what it is wrong about, such as flipped labels, dominates
Q_i. So there `skew` is the distance ‖Δw_i - mean Δw‖, outliers are those of Q_i, and there is no bound: a trained model
depends on the samples that it is measured on.

What this reveals: whoever sees an insight of an untrained model can compute the client's class shares nearly exactly.
No sample leaves a client, but where class shares are secret, this analysis is not for you.
"""

from covey.job.analysis.analysis_job import ROUNDS, analyze
from covey.job.analysis.analysis_result import Analysis
from covey.job.analysis.confidence import bias_slot
from covey.job.analysis.outliers import STANDS_OUT

__all__ = ["ROUNDS", "STANDS_OUT", "Analysis", "analyze", "bias_slot"]
