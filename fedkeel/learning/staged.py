"""A model as a chain of named stages, so that an algorithm can enter or leave it anywhere between two of them."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from fedkeel.errors import invalid


class Staged(nn.Module):
    """A model cut into consecutive named stages: each stage maps the previous stage's output, a batch first.

    ``Staged({"conv1": nn.Sequential(...), "fc1": nn.Sequential(...), "head": nn.Linear(84, 10)})`` keeps the order of
    the mapping and the names, so parameters read ``conv1.0.weight``, ``head.bias``.

    Two algorithms need more of a model than its logits, and both get it from ``start`` and ``stop``:

    * MOON compares features, the output of everything before the last stage: ``model(x, stop=model.levels)``.
      A model with a projection has it as the stage before the last.
    * FedMLB grafts ``stages[:l + 1]`` of one model on ``stages[l + 1:]`` of another, l = 0 … ``levels`` − 1:
      ``frozen(model(x, stop=l + 1), start=l + 1)``.

    The module holds its stages and nothing else, so ``torch.func.functional_call`` and ``torch.func.vmap`` see a pure
    function: ``functional_call(model, params, (x,), {"stop": 2})``.
    """

    def __init__(self, stages: Mapping[str, nn.Module]) -> None:
        super().__init__()
        if not stages:
            raise invalid("Staged.stages", "at least one module by name", dict(stages))
        for name, stage in stages.items():
            if not name.isidentifier() or hasattr(self, name):
                hint = "Names such as 'conv1', 'fc2' and 'head' are safe."
                raise invalid("a stage name", "an identifier that torch.nn.Module does not use itself", name, hint)
            self.add_module(name, stage)

    @property
    def levels(self) -> int:
        """How many cuts lie between two stages: the number of stages − 1, M in FedMLB; 0 for a linear model."""
        return len(self._modules) - 1

    def forward(self, x: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """Run ``stages[start:stop]`` on ``x``: the input ``[B, …]`` or, from a later start, the features there.

        With the default of both, the result is the logits ``[B, classes]``.
        """
        # Not children(): that skips a module object that serves as two stages.
        for stage in tuple(self._modules.values())[start:stop]:
            assert stage is not None
            x = stage(x)
        return x
