"""Write an ONNX graph node by node: plain operators in double precision, which every onnxruntime knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from mbrl_hdp.data.atomic import atomic_path

OPSET, IR_VERSION = 17, 8
BATCH = "batch"


class Graph:
    """A graph that grows; values are names.

    Example:
        >>> graph = Graph({"x": ["batch", 2]})
        >>> graph.write(path, {graph.add("Exp", "x"): "y"}, {"y": ["batch", 2]})
    """

    def __init__(self, inputs: Mapping[str, Sequence[str | int]]) -> None:
        self.inputs = dict(inputs)
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def constant(self, values: Any, dtype: Any = np.float64) -> str:
        """Return a constant."""
        name = f"c{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.ascontiguousarray(np.asarray(values, dtype=dtype)), name))
        return name

    def add(self, operator: str, *values: str | NDArray[Any] | float, **attributes: Any) -> str:
        """Append an operator; arrays and numbers among its values become constants. Return its output."""
        names = [value if isinstance(value, str) else self.constant(value) for value in values]
        name = f"v{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, names, [name], **attributes))
        return name

    def columns(self, values: str, columns: Sequence[int] | NDArray[Any]) -> str:
        """Return some columns (of the last axis) of a matrix."""
        return self.add("Gather", values, self.constant(columns, np.int64), axis=1)

    def sum_last(self, values: str, *, keep: bool = False) -> str:
        """Sum over the last axis."""
        return self.add("ReduceSum", values, self.constant([-1], np.int64), keepdims=int(keep))

    def reshape(self, values: str, shape: Sequence[int]) -> str:
        """Return the values in another shape; -1 stands for what is left."""
        return self.add("Reshape", values, self.constant(shape, np.int64))

    def sine(self, values: str) -> str:
        """Return the sine."""
        return self.add("Sin", values)

    def cosine(self, values: str) -> str:
        """Return the cosine; older runtimes have it in single precision only, the sine in both."""
        return self.add("Sin", self.add("Add", values, 0.5 * np.pi))

    def relu(self, values: str) -> str:
        """Return max(values, 0) where NaN stays NaN."""
        return self.add("Where", self.add("Less", values, 0.0), 0.0, values)

    def write(self, path: Path, outputs: Mapping[str, str], shapes: Mapping[str, Sequence[str | int]]) -> None:
        """Write the graph to a file.

        Args:
            path: the file.
            outputs: values that are outputs, with their names.
            shapes: shape of every output.
        """
        nodes = [*self._nodes, *(helper.make_node("Identity", [value], [name]) for value, name in outputs.items())]
        given, wanted = ([_value(*item) for item in values.items()] for values in (self.inputs, shapes))
        graph = helper.make_graph(nodes, path.stem, given, wanted, initializer=self._constants)
        opset = [helper.make_opsetid("", OPSET)]
        made = helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION, producer_name="mbrl_hdp")
        onnx.checker.check_model(made, full_check=True)
        with atomic_path(path) as temporary:
            temporary.write_bytes(made.SerializeToString())


def _value(name: str, shape: Sequence[str | int]) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.DOUBLE, list(shape))
