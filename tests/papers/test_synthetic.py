"""FedDC's Synthetic(1,0) as the paper describes it cannot have the accuracy that it prints."""

import torch
from torch.nn.functional import cross_entropy

from fedkeel.build import make_federation
from fedkeel.papers.format import papers
from fedkeel.papers.plan import planned


def fitted(setting: str) -> float:
    """The accuracy of softmax regression on the samples of all clients that it was fitted to, to convergence."""
    experiment = planned(papers()["feddc"], setting, "feddc", "full").experiment
    test = make_federation(experiment).dataset.test
    x, y = torch.as_tensor(test.x), torch.as_tensor(test.y)
    W, b = torch.zeros(30, 5, requires_grad=True), torch.zeros(5, requires_grad=True)
    optimiser = torch.optim.LBFGS([W, b], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        loss = cross_entropy(x @ W + b, y)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimiser.step(closure)
    return float(((x @ W + b).argmax(1) == y).float().mean())


def test_labellings_of_their_own_leave_one_model_less_than_a_third() -> None:
    """Inputs that are alike with 20 labellings of 5 classes: whatever one model answers is wrong for most clients."""
    notes = papers()["feddc"].settings["synthetic-10-15"].open
    assert any("less than a third right" in note for note in notes)
    assert fitted("synthetic-10-15") < 1 / 3
    assert fitted("synthetic-00-15") > 0.99
