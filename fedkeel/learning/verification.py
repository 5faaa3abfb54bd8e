"""Whether what is computed for a model is what plain torch computes: asked once, before anything is trained."""

from __future__ import annotations

import torch
from torch import Tensor

from fedkeel.errors import ModelError
from fedkeel.learning.recognise import layers_of
from fedkeel.learning.task import Batch, Objective, Task
from fedkeel.learning.trial import (
    ON_ACCELERATORS,
    ROUND_OFF,
    Answer,
    Reference,
    difference,
    in_last_digits,
    nudged,
    reference,
    same_draws,
)


def verify(task: Task, x: Tensor, y: Tensor, images: Tensor | None = None) -> None:
    """Compare, before anything is trained, what is computed here with plain torch on samples x [B, ...], y [B].

    ``images`` are the same samples as training will have them, if that is not how x lies in memory. Where value,
    gradient, buffers or outputs differ by more than round-off, autograd on the module as it was given takes over
    for good, and a notice says so. What has no right way is refused. Once is enough.
    """
    if task.given is None:
        return
    fast = _verdict(task, x, y, x if images is None else images)
    if fast:
        task.use_plain_autograd()
        said = _plainly(task, x, y, fast)
        task.notices += [said] if said else []
    task.given = None


def _verdict(task: Task, x: Tensor, y: Tensor, images: Tensor) -> str:
    """In what the fast ways differ from plain torch; nothing if they do not."""
    simple = layers_of(task.train_module) is not None  # no forward pass in it but torch's
    found = ""
    for seed in range(2):  # since a ReLU may stand so close to zero that round-off turns it
        point, expected = _reference(task, x, y, seed)
        task.writes_inputs = expected.writes_inputs
        if expected.always_draws:
            return "outputs in evaluation, which are random"
        found = _difference(task, point, images, y, expected)
        if not found and not simple:
            found = _difference(task, point, images, y, expected, task.objective)
        if found:
            # Deep networks multiply round-off: see how far a change of the last digits takes plain torch itself.
            _, shaken = _reference(task, x, y, seed, shaken=True)
            found = _difference(task, point, images, y, expected, None, shaken) or (
                "" if simple else _difference(task, point, images, y, expected, task.objective, shaken)
            )
        if not found:
            break
    return found


def _plainly(task: Task, x: Tensor, y: Tensor, fast: str) -> str:
    """What to tell about a model whose fast way differs, if the plain way does not; else an error."""
    point, expected = _reference(task, x, y, 0)
    if expected.always_draws:
        return ""  # nothing can be compared, and nothing is wrong with that
    _, shaken = _reference(task, x, y, 0, shaken=True)
    found = _difference(task, point, x, y, expected, None, shaken)
    if found:
        if _differs(task, _reference(task, x, y, 0)[1].answer, expected.answer):
            return "the model gives other results each time for the same samples; it is computed by plain autograd."
        raise ModelError(
            f"the model does not always give the same {found} for the same parameters, buffers and samples; state "
            "that it keeps elsewhere (attributes, counters) must be a buffer, since every client has its own."
        )
    functional = _difference(task, point, x, y, expected, task.objective, shaken)
    if functional:
        task.not_functional = (
            "this algorithm calls the model as a function of its parameters, which does not give what the model "
            f"gives ({functional}); let it take its parameters from its own attributes at every forward pass."
        )
    return (
        f"the fast way to compute this model differs from plain autograd ({fast}), so plain autograd is used: "
        "the results are right, the rounds take longer."
    )


def _reference(task: Task, x: Tensor, y: Tensor, seed: int, shaken: bool = False) -> tuple[Tensor, Reference]:
    """A point [d] near the start, and what plain torch gives there, in training mode where that can be compared."""
    w = nudged(task.w0, task.layout, seed)
    if shaken:
        w = in_last_digits(w)
    batch = Batch(x, y)

    def computed(train: bool) -> Reference:
        def value(outputs: Tensor) -> Tensor:
            return task.mean_loss(outputs, batch)

        module = task.module_at(w, task.b0).to(task.device)
        return reference(module, task.given, task.layout, task.buffer_layout, x, value, train, task.draws_nothing)

    try:
        expected = computed(True)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        expected = computed(False)
    if expected.draws and not expected.always_draws:
        expected = computed(False)
    if task.loss.l2:
        loss, gradient, *rest = expected.answer
        penalty = 0.5 * task.loss.l2 * w.square().sum()
        answer = Answer(loss + penalty.to(loss.device), gradient + task.loss.l2 * w.to(gradient.device), *rest)
        expected = expected._replace(answer=answer)
    return w.to(task.device), expected


def _difference(
    task: Task,
    w: Tensor,
    x: Tensor,
    y: Tensor,
    expected: Reference,
    objective: Objective | None = None,
    shaken: Reference | None = None,
) -> str:
    """In what the answer here, or that of the functional call, differs from plain torch's; empty: in nothing."""
    b = task.b0.to(task.device)
    batch = Batch(x[None], y[None])
    try:
        with same_draws(task.draws_nothing, task.device, task.generators):
            gradient, loss, after = task.gradient(w[None], b[None], batch, objective, train=expected.train)
        with same_draws(task.draws_nothing, task.device, task.generators), torch.no_grad():
            outputs = task.outputs(w, b, x) if objective is None else task.net(b, False).forward(w, x)
    except Exception as error:  # whatever it is, plain torch has no such trouble
        return f"answer ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})"
    answer = Answer(loss[0], gradient[0], after[0], outputs)
    return _differs(task, answer, expected.answer, None if shaken is None else shaken.answer)


def _differs(task: Task, answer: Answer, expected: Answer, shaken: Answer | None = None) -> str:
    tolerance = ROUND_OFF[task.dtype] if task.device.type == "cpu" else ON_ACCELERATORS
    return difference(answer, expected, task.layout, task.buffer_layout, tolerance, shaken)
