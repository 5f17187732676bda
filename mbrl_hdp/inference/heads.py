"""K small ReLU networks as one: all heads on every row, one head per row, or one head per block of rows.

The plain torch version serves every device, dtype, depth, width and gradient. Narrow networks with one hidden layer on
the CPU take the compiled kernels of `head_kernels.py` where no gradient by the inputs is needed; both give the same
numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from mbrl_hdp.errors import DataError

Inputs = Float[Tensor, "batch I"]
Targets = Float[Tensor, "batch O"]
InverseStd = Float[Tensor, "n O"]
Offset = Float[Tensor, " n"]
Slots = Int[Tensor, " n"]
ROWS_PER_CHUNK = 512
DEFAULT_SKIP_SHARE = 1e-6
# Inputs plus outputs up to which the kernels win; wider layers are what matrix libraries are made for.
WIDEST_COMPILED = 256


class ContextHeads(nn.Module):
    """K networks of the same shape: linear layers with ReLU between them, one linear map where `hidden_sizes` is empty.

    Attributes:
        weights: one parameter a layer, `K outputs inputs`.
        biases: one parameter a layer, `K outputs`.

    Example:
        >>> heads = ContextHeads(max_contexts=5, num_inputs=6, num_outputs=4, hidden_sizes=[128])
        >>> heads(torch.zeros(10, 6)).shape
        torch.Size([10, 5, 4])
    """

    def __init__(self, max_contexts: int, num_inputs: int, num_outputs: int, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        self.max_contexts = max_contexts
        sizes = [num_inputs, *hidden_sizes, num_outputs]
        pairs = list(pairwise(sizes))
        self.weights = nn.ParameterList(torch.zeros(max_contexts, width, depth) for depth, width in pairs)
        self.biases = nn.ParameterList(torch.zeros(max_contexts, width) for _, width in pairs)

    def forward(self, inputs: Inputs) -> Float[Tensor, "batch K O"]:
        """Return the output of every head for every row."""
        return _run_layers(self._layers(), inputs.T.expand(self.max_contexts, -1, -1)).permute(2, 0, 1)

    def own_head(self, inputs: Inputs, context: Int[Tensor, " batch"]) -> Targets:
        """Run every row through the head of its own context: sort the rows by context, one product a group.

        Raises:
            DataError: on a context that does not exist.
        """
        self.check_contexts(context)
        if self._is_compiled_for(inputs):
            from mbrl_hdp.inference.head_kernels import group_rows

            order, starts = group_rows(context.numpy(), self.max_contexts)
            return self._run_segments(inputs, order, starts, np.arange(self.max_contexts))
        order_by_context = context.argsort(stable=True)
        counts = context.bincount(minlength=self.max_contexts).tolist()
        groups = inputs[order_by_context].split(counts)
        outputs = torch.cat([_run_layers(self._layers(k), group.T).T for k, group in enumerate(groups)])
        return torch.empty_like(outputs).index_copy(0, order_by_context, outputs)

    def block_heads(
        self, inputs: Float[Tensor, "paths rows I"], context: Int[Tensor, " paths"]
    ) -> Float[Tensor, "paths rows O"]:
        """Run block p of rows through the head context[p]; nothing is sorted (plans that share context paths).

        Raises:
            DataError: on a context that does not exist.
        """
        self.check_contexts(context)
        if self._is_compiled_for(inputs):
            num_paths, num_rows, _ = inputs.shape
            starts = np.arange(num_paths + 1) * num_rows
            order = np.arange(num_paths * num_rows)
            return self._run_segments(inputs.flatten(0, 1), order, starts, context.numpy()).unflatten(
                0, (num_paths, num_rows)
            )
        return _run_layers(self._layers(context), inputs.mT).mT

    def log_density(
        self,
        inputs: Inputs,
        targets: Targets,
        inverse_std: InverseStd,
        offset: Offset,
        skip_share: float = DEFAULT_SKIP_SHARE,
        slots: Slots | None = None,
    ) -> Float[Tensor, "batch n"]:
        """Return the Gaussian log density of every head: offset[k] - 1/2 sum_o ((targets - mean_k) inverse_std)^2.

        Args:
            inputs: what the networks see.
            targets: what they predict.
            inverse_std: 1/std; 0 takes an output out of the density.
            offset: the density's logarithm at the mean.
            skip_share: in single precision, the backward pass leaves out the (row, context) pairs with the smallest
                contributions |grad| (1 + squared distance), as long as these add up to less than this share of the sum
                over all pairs; 0 leaves out zeros only. Double precision never leaves out more than zeros.
            slots: the heads to run, with their rows of `inverse_std` and `offset`; all of them by default.
        """
        if self._is_compilable(inputs, targets):
            share = skip_share if inputs.dtype == torch.float32 else 0.0
            layers = [tensor for layer in self._layers(slots) for tensor in layer]
            return _CompiledDensity.apply(inputs, targets, *layers, inverse_std, offset, share)
        return self.reference_log_density(inputs, targets, inverse_std, offset, slots)

    def reference_log_density(
        self, inputs: Inputs, targets: Targets, inverse_std: InverseStd, offset: Offset, slots: Slots | None = None
    ) -> Float[Tensor, "batch n"]:
        """Return `log_density` in plain torch, in chunks whose hidden layers are recomputed in the backward pass."""
        layers = [tensor for layer in self._layers(slots) for tensor in layer]
        if len(inputs) <= ROWS_PER_CHUNK:
            return _chunk_density(inputs, targets, inverse_std, offset, *layers)
        pairs = zip(inputs.split(ROWS_PER_CHUNK), targets.split(ROWS_PER_CHUNK), strict=True)
        return torch.cat(
            [
                checkpoint(_chunk_density, *pair, inverse_std, offset, *layers, use_reentrant=False)
                if torch.is_grad_enabled()
                else _chunk_density(*pair, inverse_std, offset, *layers)
                for pair in pairs
            ]
        )

    def _layers(self, slots: int | Tensor | None = None) -> list[tuple[Tensor, Tensor]]:
        pairs = zip(self.weights, self.biases, strict=True)
        return [(weight, bias) if slots is None else (weight[slots], bias[slots]) for weight, bias in pairs]

    @property
    def is_narrow(self) -> bool:
        """Whether the layers are of the size that the kernels are made for: at most one hidden, few inputs and outputs.

        Only its own step costs a small network on the CPU; on other devices every operation has to be launched.
        """
        return len(self.weights) <= 2 and self.weights[0].shape[2] + self.weights[-1].shape[1] <= WIDEST_COMPILED

    def _is_compilable(self, *rows: Tensor) -> bool:
        dtype = self.weights[0].dtype
        return (
            len(self.weights) == 2
            and self.is_narrow
            and dtype in (torch.float32, torch.float64)
            and not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in rows))
            and all(tensor.device.type == "cpu" and tensor.dtype == dtype for tensor in (*rows, self.weights[0]))
        )

    def _is_compiled_for(self, rows: Tensor) -> bool:
        return not torch.is_grad_enabled() and self._is_compilable(rows)

    def _run_segments(self, inputs: Tensor, order: NDArray[Any], starts: NDArray[Any], head_of: NDArray[Any]) -> Tensor:
        from mbrl_hdp.inference.head_kernels import segment_forward

        out = inputs.new_empty(len(inputs), self.biases[1].shape[1])
        arrays = (_array(tensor) for layer in self._layers() for tensor in layer)
        segment_forward(_array(inputs), order, starts, head_of, *arrays, out.numpy())
        return out

    def check_contexts(self, context: Int[Tensor, "*batch"]) -> None:
        """Raise if a context does not exist.

        Raises:
            DataError: naming their range.
        """
        if context.numel():
            low, high = (int(bound) for bound in torch.aminmax(context))
            if low < 0 or high >= self.max_contexts:
                raise DataError(f"context must lie in [0, {self.max_contexts}), got values from {low} to {high}")


class _CompiledDensity(torch.autograd.Function):
    """`log_density` through the kernels; the gradient by inputs and targets is not offered."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, targets: Tensor, *arguments: Any) -> Tensor:
        """Return the log densities; residuals are kept for `backward` where a gradient is wanted."""
        from mbrl_hdp.inference.head_kernels import gaussian_forward

        *tensors, ctx.skip_share = arguments
        inverse_std = tensors[4]
        num_kept = len(inputs) if any(ctx.needs_input_grad) else 0
        residual = inputs.new_empty(*inverse_std.shape, num_kept)
        log_prob = inputs.new_empty(len(inputs), len(inverse_std))
        arrays = [_array(tensor) for tensor in (inputs, targets, *tensors)]
        gaussian_forward(*arrays, log_prob.numpy(), residual.numpy())
        ctx.save_for_backward(inputs, residual, log_prob, *tensors)
        return log_prob

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients by weights, biases and inverse standard deviations."""
        from mbrl_hdp.inference.head_kernels import gaussian_backward

        inputs, residual, log_prob, weight, bias, out_weight, _, inverse_std, offset = ctx.saved_tensors
        arrays = [_array(t) for t in (inputs, residual, log_prob, grad, weight, bias, out_weight, inverse_std, offset)]
        found = gaussian_backward(*arrays, ctx.skip_share)
        by_affine, by_unit, by_out_bias, by_inverse_std = (torch.from_numpy(array) for array in found)
        num_outputs, num_hidden = out_weight.shape[1:]
        by_hidden = by_affine[:, :num_hidden]
        by_weight, by_bias = by_hidden[..., : inputs.shape[1]], by_hidden[..., inputs.shape[1]]
        by_layers = (by_weight, by_bias, by_unit[:, :num_hidden, :num_outputs].mT, by_out_bias)
        return None, None, *(part.contiguous() for part in by_layers), by_inverse_std, grad.sum(0), None


def _array(tensor: Tensor) -> NDArray[Any]:
    return tensor.detach().contiguous().numpy()


def _run_layers(layers: Sequence[tuple[Tensor, Tensor]], columns: Tensor) -> Tensor:
    """Run `... inputs batch` through the layers; feature-major, which these narrow layers like better."""
    for number, (weight, bias) in enumerate(layers):
        columns = weight @ (columns.relu() if number else columns) + bias[..., None]
    return columns


def _chunk_density(
    inputs: Tensor, targets: Tensor, inverse_std: Tensor, offset: Tensor, *flat_layers: Tensor
) -> Tensor:
    layers = list(zip(flat_layers[::2], flat_layers[1::2], strict=True))
    mean = _run_layers(layers, inputs.T.expand(len(inverse_std), -1, -1))
    scaled = (targets.T - mean) * inverse_std[..., None]
    return (offset[:, None] - 0.5 * scaled.square().sum(1)).T
