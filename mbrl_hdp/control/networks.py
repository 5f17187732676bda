"""The networks of SAC: stacked MLPs whose gradients are written out by hand, and Adam on a flat vector.

SAC's networks are small, so a graph of small operations costs more than their arithmetic. Here the two critics are one
stack of networks, activations are feature-major (`features B`), a row of ones among the inputs carries the first bias,
and all parameters of a stack lie in one vector. `StackedMlp.forward` is the plain version that autograd can
differentiate; `run`, `parameter_grad` and `input_grad` are the fast one, tested equal to it. Nothing here slices the
packed vector: `policy.py` prepares the inputs.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

_LOG_TWO_PI = math.log(2.0 * math.pi)


class Layer(NamedTuple):
    """One layer of a stack: `weight` is `nets out in`, `bias` `nets out 1` (None where a row of ones carries it)."""

    weight: Float[Tensor, "nets out in"]
    bias: Float[Tensor, "nets out 1"] | None


class StackedMlp(nn.Module):
    """Some ReLU networks of one shape that see the same input, side by side.

    The input `rows B` has one feature per row, one of which is a row of ones: its column of weights is the bias of the
    first layer. Outputs are `nets out B`.

    Args:
        num_nets: number of networks (two critics, one policy).
        num_rows: rows of the input, the row of ones among them.
        ones_row: which row is the row of ones.
        hidden_sizes: widths of the hidden layers, at least one.
        num_outputs: outputs of every network.

    Attributes:
        flat: all parameters in one vector.
        grad: where `parameter_grad` leaves the gradient of `flat`.
    """

    def __init__(self, num_nets: int, num_rows: int, ones_row: int, hidden_sizes: list[int], num_outputs: int) -> None:
        super().__init__()
        self.num_nets, self.num_rows, self.ones_row = num_nets, num_rows, ones_row
        self.sizes = [num_rows, *hidden_sizes, num_outputs]
        self.flat = nn.Parameter(torch.zeros(self._num_parameters()))
        self.grad = torch.zeros_like(self.flat, requires_grad=False)
        self._bind()

    def _num_parameters(self) -> int:
        pairs = list(zip(self.sizes[:-1], self.sizes[1:], strict=True))
        return self.num_nets * (sum(wide * (deep + 1) for deep, wide in pairs) - pairs[0][1])

    def _layers(self, flat: Tensor) -> list[Layer]:
        """See a flat vector as the layers' weights and biases; the first layer has no bias of its own."""
        layers, start = [], 0
        for number, (num_in, num_out) in enumerate(zip(self.sizes[:-1], self.sizes[1:], strict=True)):
            stop = start + self.num_nets * num_out * num_in
            weight = flat[start:stop].view(self.num_nets, num_out, num_in)
            start = stop
            bias = None
            if number > 0:
                start = stop + self.num_nets * num_out
                bias = flat[stop:start].view(self.num_nets, num_out, 1)
            layers.append(Layer(weight, bias))
        return layers

    def _bind(self) -> None:
        """Keep views of the parameters and of their gradient: making them anew costs as much as using them."""
        self._values = self._layers(self.flat.detach())
        self._grads = self._layers(self.grad)
        self._first = self._values[0].weight.reshape(-1, self.num_rows)
        self._first_grad = self._grads[0].weight.view(-1, self.num_rows)

    def _apply(self, fn: Any, recurse: bool = True) -> StackedMlp:
        super()._apply(fn, recurse)
        self.grad = fn(self.grad)
        self._bind()
        return self

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Draw Glorot-uniform weights (as mbrl-lib's SAC) and set biases to zero."""
        for number, (weight, bias) in enumerate(self._values):
            num_out, num_in = weight.shape[1], weight.shape[2] - (number == 0)
            bound = math.sqrt(6.0 / (num_in + num_out))
            weight.copy_(torch.empty(weight.shape).uniform_(-bound, bound, generator=generator))
            if bias is None:
                weight[:, :, self.ones_row] = 0.0
            else:
                bias.zero_()

    def forward(self, inputs: Float[Tensor, "rows B"]) -> Float[Tensor, "nets out B"]:
        """Return the outputs; differentiable in `flat` and the inputs."""
        hidden = inputs.expand(self.num_nets, *inputs.shape)
        for weight, bias in self._layers(self.flat):
            hidden = weight @ hidden if bias is None else torch.baddbmm(bias, weight, hidden.relu())
        return hidden

    @property
    def layers(self) -> list[Layer]:
        """The parameters, layer by layer: views of `flat`, without a graph."""
        return self._values

    @property
    def layer_grads(self) -> list[Layer]:
        """The gradient, layer by layer: views of `grad`."""
        return self._grads

    def run(self, inputs: Float[Tensor, "rows B"]) -> list[Float[Tensor, "nets _ B"]]:
        """Return the hidden activations of every layer and, last, the outputs; without a graph."""
        hidden = torch.mm(self._first, inputs).view(self.num_nets, -1, inputs.shape[1])
        activations = []
        for weight, bias in self._values[1:]:
            activations.append(hidden.relu_())
            assert bias is not None
            hidden = torch.baddbmm(bias, weight, hidden)
        return [*activations, hidden]

    def parameter_grad(
        self,
        inputs: Float[Tensor, "rows B"],
        activations: list[Float[Tensor, "nets _ B"]],
        output_grad: Float[Tensor, "nets out B"],
    ) -> Float[Tensor, " P"]:
        """Return d loss / d flat from d loss / d outputs, after `run`; kept in `self.grad`."""
        grad = self._through_hidden(activations, output_grad, with_parameters=True)
        torch.mm(grad, inputs.mT, out=self._first_grad)
        return self.grad

    def input_grad(
        self, activations: list[Float[Tensor, "nets _ B"]], output_grad: Float[Tensor, "nets out B"], rows: slice
    ) -> Float[Tensor, "some B"]:
        """Return d loss / d inputs[rows], summed over the networks, after `run`; the parameters are left alone."""
        grad = self._through_hidden(activations, output_grad, with_parameters=False)
        return torch.mm(self._first[:, rows].mT, grad)

    def _through_hidden(self, activations: list[Tensor], grad: Tensor, with_parameters: bool) -> Tensor:
        """Pull a gradient back to the first layer's outputs, `nets*hidden B`."""
        for number in range(len(self._values) - 1, 0, -1):
            hidden = activations[number - 1]
            if with_parameters:
                torch.bmm(grad, hidden.mT, out=self._grads[number].weight)
                torch.sum(grad, -1, keepdim=True, out=self._grads[number].bias)
            back = torch.bmm(self._values[number].weight.mT, grad)
            grad = torch.ops.aten.threshold_backward(back, hidden, 0)
        return grad.view(-1, grad.shape[-1])

    def select_rows(self, flat: Float[Tensor, " P"], keep: Bool[Tensor, " rows"]) -> Float[Tensor, " p"]:
        """Leave the removed input rows out of a vector that lies like `flat` (an optimiser's moments, a target)."""
        weight = self._layers(flat)[0].weight
        return torch.cat([weight[:, :, keep].reshape(-1), flat[weight.numel() :]])

    @torch.no_grad()
    def load_flat(self, values: Float[Tensor, " P"]) -> None:
        """Set the values of all parameters."""
        self.flat.copy_(values)


class FlatAdam:
    """Adam with weight decay on one vector, in place; the same numbers as `torch.optim.Adam`.

    Args:
        values: the parameters, changed in place by `step`.
        lr: learning rate.
        weight_decay: factor of the L2 term that is added to the gradient.
    """

    BETAS = (0.9, 0.999)
    EPSILON = 1e-8

    def __init__(self, values: Float[Tensor, " P"], lr: float, weight_decay: float = 0.0) -> None:
        self.values, self.lr, self.weight_decay = values, lr, weight_decay
        self.mean, self.square = torch.zeros_like(values), torch.zeros_like(values)
        self.num_steps = 0

    def step(self, grad: Float[Tensor, " P"], lr_factor: float = 1.0) -> None:
        """Take one step against the gradient, at `lr * lr_factor`."""
        first, second = self.BETAS
        self.num_steps += 1
        if self.weight_decay:
            grad = grad.add(self.values, alpha=self.weight_decay)
        self.mean.lerp_(grad, 1.0 - first)
        self.square.mul_(second).addcmul_(grad, grad, value=1.0 - second)
        # Bias corrections as in Adam: sqrt(square / c2) + eps = (sqrt(square) + eps sqrt(c2)) / sqrt(c2).
        root = math.sqrt(1.0 - second**self.num_steps)
        scale = root / (1.0 - first**self.num_steps)
        self.values.addcdiv_(
            self.mean, self.square.sqrt().add_(self.EPSILON * root), value=-self.lr * lr_factor * scale
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Return the moments and the number of steps."""
        return {"mean": self.mean, "square": self.square, "num_steps": torch.tensor(self.num_steps)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a state that `state_dict` returned."""
        self.mean.copy_(state["mean"])
        self.square.copy_(state["square"])
        self.num_steps = int(state["num_steps"])


class LastUpdate(NamedTuple):
    """What an update of SAC measured on its minibatch.

    Attributes:
        error: the critics' values minus their target.
        values: the critics' values of the policy's own actions.
        log_prob: log density of these actions.
        log_alpha: log temperature before the update.
        excess: mean of `log_prob` plus the target entropy: the temperature falls while it is negative.
    """

    error: Float[Tensor, "2 B"]
    values: Float[Tensor, "2 B"]
    log_prob: Float[Tensor, " B"]
    log_alpha: Float[Tensor, " 1"]
    excess: Float[Tensor, ""]


class SquashedDraw(NamedTuple):
    """Actions of a tanh-squashed Gaussian policy and what their gradients need.

    Attributes:
        act: tanh(mean + std * noise), in (-1, 1).
        log_prob: log density of `act`.
        spread: std * noise, d(unsquashed action) / d(log std).
        is_free: where the log std is inside its bounds, so that a gradient reaches it.
    """

    act: Float[Tensor, "A B"]
    log_prob: Float[Tensor, " B"]
    spread: Float[Tensor, "A B"]
    is_free: Bool[Tensor, "A B"]


def squashed_draw(
    outputs: Float[Tensor, "twoA B"], noise: Float[Tensor, "A B"], bounds: tuple[float, float]
) -> SquashedDraw:
    """Draw a = tanh(mean + std * noise) by the reparametrisation trick (appendix, eq. for tilde a).

    log density = -noise^2/2 - log std - log(2 pi)/2 - log(1 - a^2), summed over the action's entries, with
    log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)), which stays finite where the action saturates.

    Args:
        outputs: means, then log standard deviations.
        noise: standard normal.
        bounds: smallest and largest log standard deviation.
    """
    num_acts = noise.shape[0]
    mean, raw = outputs[:num_acts], outputs[num_acts:]
    log_std = raw.clamp(*bounds)
    spread = log_std.exp() * noise
    before = mean + spread
    log_slope = 2.0 * (math.log(2.0) - before - nn.functional.softplus(-2.0 * before))
    density = noise.square().mul_(-0.5).sub_(log_std).sub_(log_slope)
    log_prob = density.sum(0).sub_(0.5 * num_acts * _LOG_TWO_PI)
    return SquashedDraw(before.tanh(), log_prob, spread, raw == log_std)


def squashed_grad(
    draw: SquashedDraw, act_grad: Float[Tensor, "A B"], log_prob_weight: Float[Tensor, " 1"] | float
) -> Float[Tensor, "twoA B"]:
    """Return the gradient by the policy's outputs of f(a) + log_prob_weight * log_prob, from f's gradient by a.

    With u = mean + spread: d a / d u = 1 - a^2 and d log_prob / d u = 2 a; log std also enters the density itself.
    """
    act = draw.act
    before_grad = act_grad * (1.0 - act * act) + (2.0 * log_prob_weight) * act
    log_std_grad = (before_grad * draw.spread - log_prob_weight) * draw.is_free
    return torch.cat([before_grad, log_std_grad])
