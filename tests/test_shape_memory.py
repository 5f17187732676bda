"""The memory of the shape checks: nothing passes that jaxtyping alone would stop."""

import jaxtyping
import pytest
import torch
from beartype import beartype
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from mbrl_hdp.probability.markov import stationary
from tests.shape_memory import with_memory


@pytest.fixture
def decorated():
    """Return a function that was checked once with right shapes, and a list of the full checks it went through."""
    checks = []

    def counting(fn, typechecker):
        inner = jaxtyping._decorator.jaxtyped(fn, typechecker=typechecker)

        def checked(*args, **kwargs):
            checks.append(args)
            return inner(*args, **kwargs)

        return checked

    @with_memory(counting)(typechecker=beartype)
    def scaled(
        rows: Float[Tensor, "B K"], factor: Float[Tensor, " K"], wrong: list[Tensor] | None = None
    ) -> Float[Tensor, "B K"]:
        return rows * factor if wrong is None else wrong[0]

    scaled(torch.ones(3, 2), torch.ones(2))
    return scaled, checks


def test_equal_shapes_are_checked_once(decorated):
    scaled, checks = decorated
    assert scaled(torch.zeros(3, 2), torch.full((2,), 2.0)).shape == (3, 2)
    assert len(checks) == 1
    scaled(torch.zeros(4, 2), torch.ones(2))
    assert len(checks) == 2


@pytest.mark.parametrize("factor", [torch.ones(3), torch.ones(1, 2), torch.ones(2, dtype=torch.int64), None, 2.0])
def test_other_shapes_and_types_are_checked(decorated, factor):
    with pytest.raises(TypeCheckError, match="scaled"):
        decorated[0](torch.ones(3, 2), factor)


def test_a_wrong_result_after_right_ones_is_found(decorated):
    scaled, _ = decorated
    right, wrong = torch.ones(3, 2), torch.ones(2, 3)
    for _ in range(2):
        assert scaled(right, torch.ones(2), [right]) is right
    with pytest.raises(TypeCheckError, match=r"return value.*scaled"):
        scaled(torch.ones(3, 2), torch.ones(2), [wrong.T.contiguous()[:2]])


def test_a_result_of_another_shape_from_equal_arguments_is_found():
    results = [torch.ones(2), torch.ones(2), torch.ones(3), torch.ones(2, 2)]

    @with_memory(jaxtyping._decorator.jaxtyped)(typechecker=beartype)
    def next_result(like: Float[Tensor, " K"]) -> Float[Tensor, " J"]:
        return results.pop(0)

    for length in (2, 2, 3):
        assert len(next_result(torch.ones(2))) == length
    with pytest.raises(TypeCheckError, match=r"return value.*next_result"):
        next_result(torch.ones(2))


def test_the_mathematical_rooms_are_checked():
    stationary(torch.eye(2).flip(0))
    with pytest.raises(TypeCheckError, match="stationary"):
        stationary(torch.ones(2, 3) / 3)
