"""Weights of linear layers moved by one operator: the same as a gradient, and then the update of the ordinary step."""

from itertools import product

import pytest
import torch
from torch import Tensor

from covey.runtime.stacked.lane_move import move, move_weight
from covey.runtime.stacked.lane_step import Lanes, StepTerms
from covey.runtime.stacked.linear_update_kernels import TUNED, UpdateTuning, fits
from covey.runtime.stacked.triton_support import INTERPRETED, available
from tests.runtime.stacked.triton_interpreter import multiply_bf16, needs_interpreter, run_interpreted

Case = tuple[int, int, int, int]

CASES: list[Case] = [
    # lanes, batch, outputs, inputs
    (3, 10, 37, 70),
    (1, 1, 16, 33),
    (3, 7, 5, 129),
    (1, 40, 64, 128),
    (3, 70, 33, 20),
]
TERMS = [
    StepTerms(momentum=momentum, weight_decay=decay, proximal=proximal, crop=0, flip=False)
    for momentum, decay, proximal in product((False, True), repeat=3)
]
NAME = "fc.weight"


def lanes_of(case: Case, terms: StepTerms, dtype: torch.dtype, compute: torch.dtype) -> Lanes:
    """Return lanes with one weight, all of whose numbers are drawn."""
    count, _, outputs, inputs = case
    generator = torch.Generator().manual_seed(outputs)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    weight = drawn(count, outputs, inputs)
    return Lanes(
        parameters={NAME: weight},
        working={NAME: weight.to(compute)},
        velocity={NAME: drawn(count, outputs, inputs)} if terms.momentum else {},
        first_moment={},
        second_moment={},
        taken=torch.zeros(count, dtype=torch.int64),
        received={NAME: drawn(count, outputs, inputs)} if terms.proximal else {},
        buffers={},
        settings=torch.rand(count, 4, generator=generator).to(dtype),
        loss=torch.zeros(count, dtype=torch.float64),
    )


def layer_of(case: Case, compute: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradients by outputs, inputs, and rates; the last lane is idle, the first has half a batch of padding."""
    count, batch, outputs, inputs = case
    generator = torch.Generator().manual_seed(batch)
    by_output = torch.randn(count, batch, outputs, generator=generator).to(compute)
    x = torch.randn(count, batch, inputs, generator=generator).to(compute)
    by_output[0, (batch + 1) // 2 :] = 0.0
    rate = torch.linspace(0.3, 0.0, count) if count > 1 else torch.tensor([0.2])
    return by_output, x, rate


def tensors(lanes: Lanes) -> dict[str, Tensor]:
    named = {"weight": lanes.parameters, "working": lanes.working, "velocity": lanes.velocity}
    return {name: values[NAME] for name, values in named.items() if values}


def check(case: Case, terms: StepTerms, dtype: torch.dtype, compute: torch.dtype, limit: float) -> None:
    """Compare the operator with the ordinary update, given the gradient, in float64 on the same numbers."""
    by_output, x, rate = layer_of(case, compute)
    found = lanes_of(case, terms, dtype, compute)
    exact = lanes_of(case, terms, torch.float64, torch.float64)
    for mine, other in zip(exact.tensors(), lanes_of(case, terms, dtype, dtype).tensors(), strict=True):
        mine.copy_(other)
    gradients = {NAME: torch.bmm(by_output.double().mT, x.double())}
    move(exact, gradients, rate.double(), rate.double() > 0, terms)
    before = {name: value.clone() for name, value in tensors(found).items()}
    move_weight(found, NAME, by_output, x, rate.to(dtype), terms)
    for name, value in tensors(found).items():
        if name != "working":
            torch.testing.assert_close(value.double(), tensors(exact)[name], rtol=limit, atol=limit * case[1])
    weight, working = found.parameters[NAME], found.working[NAME]
    if INTERPRETED and compute == torch.bfloat16:
        # Triton's interpreter cuts off where others round.
        assert bool(((working.double() - weight.double()).abs() <= weight.double().abs() / 128).all())
    else:
        assert torch.equal(working, weight.to(compute))
    if case[0] > 1:
        assert torch.equal(weight[-1], before["weight"][-1]), "an idle lane keeps its weights"


@pytest.mark.parametrize("terms", TERMS, ids=lambda terms: f"{terms.momentum}-{terms.weight_decay}-{terms.proximal}")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_operator_is_a_gradient_and_the_ordinary_update(case: Case, terms: StepTerms) -> None:
    check(case, terms, torch.float64, torch.float64, 1e-12)
    check(case, terms, torch.float32, torch.float32, 1e-5)
    check(case, terms, torch.float32, torch.bfloat16, 1e-5)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_update_is_one_graph_and_changes_the_same_tensors(backend: str) -> None:
    case, terms = CASES[0], TERMS[-1]
    by_output, x, rate = layer_of(case, torch.bfloat16)

    def step(lanes: Lanes, by_output: Tensor) -> None:
        twice = by_output * 2
        move_weight(lanes, NAME, twice, x, rate, terms)

    found, wanted = (lanes_of(case, terms, torch.float32, torch.bfloat16) for _ in range(2))
    torch.compile(step, fullgraph=True, dynamic=False, backend=backend)(found, by_output)
    step(wanted, by_output)
    torch.testing.assert_close(tensors(found), tensors(wanted))


def test_layers_whose_offsets_take_more_than_32_bits_are_not_for_the_kernel() -> None:
    x = torch.empty(1, device="meta").expand(2, 10, 1 << 16)
    weight = torch.empty(2, 1 << 10, 1 << 16, device="meta")
    assert fits(x, weight)
    assert not fits(x, torch.empty(2, 1 << 15, 1 << 16, device="meta"))
    assert not fits(x, weight.mT)


@needs_interpreter
def test_the_triton_kernel_agrees_with_the_ordinary_update() -> None:
    run_interpreted("tests.runtime.stacked.test_linear_update")


if __name__ == "__main__":
    torch.set_num_threads(1)
    multiply_bf16()
    assert available(torch.zeros(1))
    for case, terms in product(CASES, TERMS):
        check(case, terms, torch.float32, torch.float32, 1e-5)
        check(case, terms, torch.float32, torch.bfloat16, 1e-5)
    TUNED["update"] = UpdateTuning(16, 64, 4, products=False)
    for case in CASES:
        check(case, TERMS[-1], torch.float32, torch.bfloat16, 1e-5)
