"""The acoustic model as an ONNX graph, written node by node: one LSTM node a layer.

ONNX orders the gates of an LSTM input, output, forget, cell; PyTorch input, forget, cell, output.
ONNX's LSTM reads each sequence within its length, backwards too, as the model does.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

from asr.errors import UserError
from asr.filterbank.frames import STACKED_FRAMES
from asr.model import AcousticModel

OPSET = 17  # 2022; every runtime of today has it
IR_VERSION = 8  # the file format of that opset's time


def to_onnx(model: AcousticModel) -> onnx.ModelProto:
    """The model's graph, of dynamic batch N and time T (at least 3 frames).

    ``features`` (N, T, F) float32, raw log-mel, and ``lengths`` (N,) int64 in; ``log_probs``
    (N, T // 3, V) float32 and ``out_lengths`` (N,) int64 out. A model of one direction takes
    ``h`` (layers, N, P) and ``c`` (layers, N, H) float32 too, zeros to begin with, and gives
    ``next_h`` and ``next_c`` to go on with, when T is a multiple of 3. UserError for an LSTM with
    a projection, which ONNX does not have.
    """
    if model.config.projection:
        raise UserError(
            f"model.projection={model.config.projection}: ONNX's LSTM has no projection"
        )
    return _Graph(model).build()


def difference(graph: onnx.ModelProto, model: AcousticModel) -> float:
    """The largest difference of log-probabilities between the graph, run by onnxruntime, and the
    model in PyTorch, on a batch of random features of unequal lengths."""
    lengths = torch.tensor([100, 31, 3])
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(len(lengths), 100, model.mean.numel(), generator=generator)
    features = features * model.std + model.mean
    feed = {"features": features.numpy(), "lengths": lengths.numpy()}
    if not model.config.bidirectional:
        state = (model.config.layers, len(lengths), model.config.hidden)
        feed |= {name: np.zeros(state, dtype=np.float32) for name in ("h", "c")}
    session = onnxruntime.InferenceSession(
        graph.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    found = torch.from_numpy(session.run(["log_probs"], feed)[0])
    with torch.inference_mode():
        expected, out_lengths = model(features, lengths)
    inside = torch.arange(expected.shape[1]) < out_lengths[:, None]
    return (found - expected)[inside].abs().max().item()


class _Graph:
    """Nodes and constants as they are added."""

    def __init__(self, model: AcousticModel) -> None:
        self.model = model
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def build(self) -> onnx.ModelProto:
        config = self.model.config
        hidden, bins, vocabulary = config.hidden, self.model.mean.numel(), self._vocabulary()
        one_way = not config.bidirectional
        inputs = [
            helper.make_tensor_value_info("features", TensorProto.FLOAT, ["N", "T", bins]),
            helper.make_tensor_value_info("lengths", TensorProto.INT64, ["N"]),
        ]
        outputs = [
            helper.make_tensor_value_info("log_probs", TensorProto.FLOAT, ["N", "U", vocabulary]),
            helper.make_tensor_value_info("out_lengths", TensorProto.INT64, ["N"]),
        ]
        if one_way:
            state: list[int | str] = [config.layers, "N", hidden]
            inputs += [_float(name, state) for name in ("h", "c")]
            outputs += [_float(name, state) for name in ("next_h", "next_c")]
        self._add("Div", ["lengths", self._integers([STACKED_FRAMES])], "out_lengths")
        sequence = self._lstm(self._stacked())  # (T // 3, N, D)
        rows = self._add("Transpose", [sequence], perm=[1, 0, 2])
        weight = self._constant(self.model.output.weight.T)
        product = self._add("MatMul", [rows, weight])
        logits = self._add("Add", [product, self._constant(self.model.output.bias)])
        self._add("LogSoftmax", [logits], "log_probs", axis=-1)
        graph = helper.make_graph(self.nodes, "acoustic_model", inputs, outputs, self.constants)
        opset = [helper.make_opsetid("", OPSET)]
        proto = helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION)
        onnx.checker.check_model(proto, full_check=True)
        return proto

    def _vocabulary(self) -> int:
        return self.model.output.out_features

    def _stacked(self) -> str:
        """Normalised frames, three stacked: ``(N, T // 3, 3 F)``."""
        model = self.model
        centred = self._add("Sub", ["features", self._constant(model.mean)])
        normalised = self._add("Div", [centred, self._constant(model.std)])
        frames = self._add("Shape", ["features"], start=1, end=2)  # (1,)
        stacks = self._add("Div", [frames, self._integers([STACKED_FRAMES])])
        kept = self._add("Mul", [stacks, self._integers([STACKED_FRAMES])])
        zero, one = self._integers([0]), self._integers([1])
        normalised = self._add("Slice", [normalised, zero, kept, one])
        if model.config.utterance_mean:
            normalised = self._without_mean(normalised, kept)
        width = self._integers([STACKED_FRAMES * model.mean.numel()])
        shape = self._add("Concat", [zero, stacks, width], axis=0)  # 0: as it was
        return self._add("Reshape", [normalised, shape])

    def _without_mean(self, features: str, frames: str) -> str:
        """As ``asr.model.without_mean``; ``frames`` (1,) is the length of ``features``."""
        none, one = self._integers([]), self._integers([1])
        start, step = self._integers(0), self._integers(1)
        lengths = self._add("Mul", ["out_lengths", self._integers([STACKED_FRAMES])])
        column = self._add("Unsqueeze", [lengths, one])  # (N, 1)
        end = self._add("Reshape", [frames, none])
        positions = self._add("Range", [start, end, step])
        inside = self._add("Less", [positions, column])  # (N, T)
        inside = self._add("Unsqueeze", [inside, self._integers([2])])
        nothing = self._constant(torch.tensor(0.0))
        total = self._add("Where", [inside, features, nothing])
        total = self._add("ReduceSum", [total, one], keepdims=1)  # (N, 1, F)
        count = self._add("Max", [column, one])
        count = self._add("Cast", [count], to=TensorProto.FLOAT)
        count = self._add("Unsqueeze", [count, self._integers([2])])
        mean = self._add("Div", [total, count])
        centred = self._add("Sub", [features, mean])
        return self._add("Where", [inside, centred, nothing])

    def _lstm(self, stacked: str) -> str:
        """All layers over ``(N, T, D)``; gives ``(T, N, D')``."""
        config = self.model.config
        directions = 2 if config.bidirectional else 1
        sequence = self._add("Transpose", [stacked], perm=[1, 0, 2])
        lengths = self._add("Cast", ["out_lengths"], to=TensorProto.INT32)
        weights = self.model.lstm.all_weights
        states: list[list[str]] = [[], []]
        for layer in range(config.layers):
            members = weights[layer * directions : (layer + 1) * directions]
            initial = ["", ""]
            if not config.bidirectional:
                place = [self._integers([layer]), self._integers([layer + 1]), self._integers([0])]
                initial = [self._add("Slice", [name, *place]) for name in ("h", "c")]
            output, *last = self._add_many(
                "LSTM",
                [sequence, *self._lstm_weights(members), lengths, *initial],
                outputs=3,
                hidden_size=config.hidden,
                direction="bidirectional" if config.bidirectional else "forward",
            )
            for state, value in zip(states, last, strict=True):
                state.append(value)
            joined = self._add("Transpose", [output], perm=[0, 2, 1, 3])  # (T, N, directions, H)
            width = self._integers([0, 0, directions * config.hidden])
            sequence = self._add("Reshape", [joined, width])
        if not config.bidirectional:
            for name, values in zip(("next_h", "next_c"), states, strict=True):
                self._add("Concat", values, name, axis=0)
        return sequence

    def _lstm_weights(self, directions: Sequence[Sequence[torch.Tensor]]) -> list[str]:
        """W, R and B of a layer, from each direction's weights and biases."""
        inputs = torch.stack([_gates(of[0]) for of in directions])
        recurrent = torch.stack([_gates(of[1]) for of in directions])
        biases = torch.stack([torch.cat([_gates(of[2]), _gates(of[3])]) for of in directions])
        return [self._constant(tensor) for tensor in (inputs, recurrent, biases)]

    def _constant(self, tensor: torch.Tensor) -> str:
        return self._keep(np.ascontiguousarray(tensor.detach().numpy()))

    def _integers(self, values: int | list[int]) -> str:
        return self._keep(np.array(values, dtype=np.int64))

    def _keep(self, values: np.ndarray) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(values, name))
        return name

    def _add(
        self, kind: str, inputs: Sequence[str], name: str | None = None, **attributes: Any
    ) -> str:
        name = name or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def _add_many(
        self, kind: str, inputs: Sequence[str], outputs: int, **attributes: Any
    ) -> list[str]:
        names = [f"{kind.lower()}_{len(self.nodes)}_{number}" for number in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return names


def _float(name: str, shape: list[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _gates(stacked: torch.Tensor) -> torch.Tensor:
    """PyTorch's gates, one below the other ``(4 H, ...)``, in ONNX's order."""
    input_gate, forget, cell, output = stacked.detach().chunk(4)
    return torch.cat([input_gate, output, forget, cell])
