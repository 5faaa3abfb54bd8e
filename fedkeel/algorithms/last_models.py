"""The models that FedDyn and FedDC offer for evaluation beside the global one.

``selected`` is the mean of the cohort's models, ``all`` the mean of every client's last model (the initial model stands
for a client not seen yet). ``all`` makes the server keep one model a client, so it is offered only on request.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field
from torch import Tensor

from fedkeel.algorithms.contract import AlgorithmParams, Problem, Uploads
from fedkeel.algorithms.server_steps import average
from fedkeel.algorithms.state import State
from fedkeel.state.rows import Rows

Candidate = Literal["global", "selected", "all"]


class CandidateParams(AlgorithmParams):
    """Which models to evaluate."""

    evaluate: tuple[Candidate, ...] = Field(
        ("global", "selected"),
        min_length=1,
        description="models to evaluate: global, selected (cohort mean), all (mean of all last models; N·d memory)",
    )


def initial(params: CandidateParams, problem: Problem) -> dict[str, Any]:
    """The values that the server keeps for its candidates, before the first round."""
    selected = {"selected": problem.w0} if "selected" in params.evaluate else {}
    return selected | ({"last": Rows(), "first": problem.w0, "all": problem.w0} if "all" in params.evaluate else {})


def renewed(server: State, uploads: Uploads, selected: Tensor) -> dict[str, Any]:
    """The same values after a round whose cohort has the mean model ``selected`` [d]."""
    kept = {"selected": selected} if "selected" in server else {}
    if "last" not in server:
        return kept
    clients = uploads.clients
    before = server.last.take(clients.ids, default=server.first)
    change = average(uploads.y - before, clients.uniform) * (clients.S / clients.N)
    return kept | {"last": server.last.put(clients.ids, uploads.y), "all": server.all + change}


def candidates(params: CandidateParams, server: State) -> dict[str, Tensor]:
    """The wanted models, in the order of ``evaluate``."""
    return {name: server["w" if name == "global" else name] for name in params.evaluate}
