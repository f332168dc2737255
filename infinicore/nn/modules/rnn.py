"""Recurrent networks: RNN, LSTM and GRU, and their cells."""

import math

import infinicore

from ...amp import is_autocast_enabled
from .. import functional as F
from .. import init
from ..functional import recurrent
from ..module import Module
from ..parameter import Parameter
from ..utils.rnn import PackedSequence


class RNNBase(Module):
    """Layers of a recurrent network, of one or two directions; `mode` is "RNN_TANH", "RNN_RELU", "LSTM" or "GRU".

    Parameters have PyTorch's names: `weight_ih_l{layer}[_reverse]` [gates * hidden_size, input], `weight_hh_...`,
    `bias_ih_...`, `bias_hh_...` and, with `proj_size`, `weight_hr_...`.
    """

    def __init__(
        self,
        mode,
        input_size,
        hidden_size,
        num_layers=1,
        bias=True,
        batch_first=False,
        dropout=0.0,
        bidirectional=False,
        proj_size=0,
        device=None,
        dtype=None,
    ):
        super().__init__()
        for name, value in (("input_size", input_size), ("hidden_size", hidden_size), ("num_layers", num_layers)):
            if not isinstance(value, int):
                raise TypeError(f"`{name}` must be an integer, got {value!r}")
            if value < 1:
                raise ValueError(f"`{name}` must be above 0, got {value}")
        for name, value in (("bias", bias), ("batch_first", batch_first)):
            if not isinstance(value, bool):
                raise TypeError(f"`{name}` must be True or False, got {value!r}")
        if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0 <= dropout <= 1:
            raise ValueError(f"`dropout` must be a probability from 0 to 1, got {dropout!r}")
        if not 0 <= proj_size < hidden_size:
            raise ValueError(f"`proj_size` must be from 0 to below `hidden_size` {hidden_size}, got {proj_size}")
        if proj_size and mode != "LSTM":
            raise ValueError(f"`proj_size` is for an LSTM, got {proj_size} for {mode}")
        if mode not in recurrent.GATES:
            raise ValueError(f"`mode` must be one of {', '.join(recurrent.GATES)}, got {mode!r}")
        self.mode, self.input_size, self.hidden_size, self.num_layers = mode, input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, float(dropout)
        self.bidirectional, self.proj_size = bidirectional, proj_size
        options = {"dtype": dtype or infinicore.get_default_dtype(), "device": device}
        gates, result = recurrent.GATES[mode] * hidden_size, proj_size or hidden_size
        self._names = []
        for number in range(num_layers):
            width = result * (1 + bidirectional) if number else input_size
            for suffix in ("", "_reverse")[: 1 + bidirectional]:
                shapes = {"weight_ih": (gates, width), "weight_hh": (gates, result)}
                shapes |= {"bias_ih": (gates,), "bias_hh": (gates,)} if bias else {}
                shapes |= {"weight_hr": (proj_size, hidden_size)} if proj_size else {}
                names = {name: f"{name}_l{number}{suffix}" for name in shapes}
                for name, shape in shapes.items():
                    self.register_parameter(names[name], Parameter(infinicore.empty(shape, **options)))
                self._names.append(names)
        if init.wanted():
            self.reset_parameters()

    def reset_parameters(self):
        """Fill all parameters uniformly from +-1 / sqrt(hidden_size)."""
        bound = 1.0 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def flatten_parameters(self):
        """Nothing to do: PyTorch's is about memory of GPUs."""

    @property
    def _flat_weights_names(self):
        return [name for names in self._names for name in names.values()]

    @property
    def _flat_weights(self):
        return [getattr(self, name) for name in self._flat_weights_names]

    @property
    def all_weights(self):
        """The parameters of each layer and direction, as lists."""
        return [[getattr(self, name) for name in names.values()] for names in self._names]

    def _weights(self, index):
        names = self._names[index]
        order = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
        return tuple(self._own(names[name]) if name in names else None for name in order)

    def forward(self, input, hx=None):
        packed = isinstance(input, PackedSequence)
        x = input.data if packed else input
        if not packed:
            if x.ndim not in (2, 3):
                raise ValueError(f"`input` must have 2 or 3 dims, got shape {x.shape_}")
            batched = x.ndim == 3
            x = x.unsqueeze(1) if not batched else x.transpose(0, 1) if self.batch_first else x
            steps, batch = x.shape_[:2]
            if not steps:
                raise ValueError(f"`input` must have a step at least, got shape {input.shape_}")
        if x.shape_[-1] != self.input_size:
            raise ValueError(f"`input` must have a last dim of {self.input_size}, got {x.shape_[-1]}")
        own = self._weights(0)[0].dtype
        if x.dtype is not own:
            if not is_autocast_enabled():
                raise TypeError(f"`input` must have the dtype of the parameters, {own}, got {x.dtype}: cast it first")
            x = x.to(own)
        sizes = input.batch_sizes.tolist() if packed else [batch] * steps
        if not packed:
            x = x.reshape(steps * batch, self.input_size)
        h, c = self._states(hx, sizes[0], x, not packed and not batched, input.sorted_indices if packed else None)
        x, h, c = self._run(x, h, c, sizes)
        if packed:
            back = input.unsorted_indices
            h, c = (s if back is None or s is None else infinicore.index_select(s, 1, back) for s in (h, c))
            output = PackedSequence(x, input.batch_sizes, input.sorted_indices, back)
        else:
            output = x.reshape(steps, batch, x.shape_[-1])
            output = output.squeeze(1) if not batched else output.transpose(0, 1) if self.batch_first else output
            h, c = (s.squeeze(1) if not batched and s is not None else s for s in (h, c))
        return output, h if c is None else (h, c)

    def _states(self, hx, batch, x, single, order):
        """The first h [layers * directions, B, P] and c, zeros unless given."""
        count, lstm = self.num_layers * (1 + self.bidirectional), self.mode == "LSTM"
        widths = {"h_0": self.proj_size or self.hidden_size} | ({"c_0": self.hidden_size} if lstm else {})
        if hx is None:
            found = [
                infinicore.zeros((count, batch, width), dtype=x.dtype, device=x.device) for width in widths.values()
            ]
        else:
            given = hx if lstm else (hx,)
            if not isinstance(given, (tuple, list)) or len(given) != len(widths):
                raise ValueError("`hx` of an LSTM must be a pair (h_0, c_0)")
            found = []
            for (name, width), state in zip(widths.items(), given):
                wanted = (count, width) if single else (count, batch, width)
                if state.shape_ != wanted:
                    raise ValueError(f"`{name}` of `hx` must have shape {wanted}, got {state.shape_}")
                state = (state.unsqueeze(1) if single else state).to(x.dtype)
                found.append(state if order is None else infinicore.index_select(state, 1, order))
        return found[0], found[1] if lstm else None

    def _run(self, x, h, c, sizes):
        last_h, last_c, directions = [], [], 1 + self.bidirectional
        for number in range(self.num_layers):
            results = []
            for direction in range(directions):
                k = number * directions + direction
                cell = None if c is None else c[k]
                y, own, memory = recurrent.layer(x, h[k], cell, self._weights(k), self.mode, sizes, direction == 1)
                results.append(y)
                last_h.append(own)
                last_c.append(memory)
            x = results[0] if directions == 1 else infinicore.cat(results, -1)
            if self.dropout and self.training and number < self.num_layers - 1:
                x = F.dropout(x, self.dropout, True)
        return x, infinicore.stack(last_h), None if c is None else infinicore.stack(last_c)

    def extra_repr(self):
        text = f"{self.input_size}, {self.hidden_size}"
        text += f", proj_size={self.proj_size}" if self.proj_size else ""
        text += f", num_layers={self.num_layers}" if self.num_layers != 1 else ""
        text += "" if self.bias else ", bias=False"
        text += ", batch_first=True" if self.batch_first else ""
        text += f", dropout={self.dropout}" if self.dropout else ""
        return text + (", bidirectional=True" if self.bidirectional else "")


class RNN(RNNBase):
    """h' = tanh (or, with `nonlinearity="relu"`, relu) of W_ih x + b_ih + W_hh h + b_hh, over the steps of an input.

    `input` is [S, B, I], with `batch_first` [B, S, I], [S, I] of one sequence, or a `PackedSequence`; `hx` is h before
    the first step [layers * directions, B, H]. Returns (the last layer's results, h after the last step).
    """

    def __init__(self, input_size, hidden_size, num_layers=1, nonlinearity="tanh", *args, **kwargs):
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"`nonlinearity` must be 'tanh' or 'relu', got {nonlinearity!r}")
        self.__dict__["nonlinearity"] = nonlinearity
        super().__init__(f"RNN_{nonlinearity.upper()}", input_size, hidden_size, num_layers, *args, **kwargs)


class LSTM(RNNBase):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997), over the steps of an input.

    Shapes as of `RNN`; `hx` is (h, c), and so is the second result. With `proj_size` h is a projection of that size.
    """

    def __init__(self, *args, **kwargs):
        super().__init__("LSTM", *args, **kwargs)


class GRU(RNNBase):
    """Gated recurrent units (Cho et al., arXiv 1406.1078), over the steps of an input; shapes as of `RNN`."""

    def __init__(self, *args, **kwargs):
        if "proj_size" in kwargs:
            raise ValueError("`proj_size` is for an LSTM, leave it out")
        super().__init__("GRU", *args, **kwargs)


class RNNCellBase(Module):
    """A step of a recurrent network: `weight_ih` [gates * hidden_size, input_size], `weight_hh`, and two biases."""

    def __init__(self, input_size, hidden_size, bias, num_chunks, device=None, dtype=None):
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        options = {"dtype": dtype or infinicore.get_default_dtype(), "device": device}
        shapes = {"weight_ih": input_size, "weight_hh": hidden_size, "bias_ih": None, "bias_hh": None}
        for name, width in shapes.items():
            shape = (num_chunks * hidden_size,) if width is None else (num_chunks * hidden_size, width)
            wanted = bias or width is not None
            self.register_parameter(name, Parameter(infinicore.empty(shape, **options)) if wanted else None)
        if init.wanted():
            self.reset_parameters()

    def reset_parameters(self):
        """Fill all parameters uniformly from +-1 / sqrt(hidden_size)."""
        bound = 1.0 / math.sqrt(self.hidden_size) if self.hidden_size else 0.0
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def _step(self, input, states, mode):
        """States after a step; all [B, H], or [H] of an input [I]."""
        if input.ndim not in (1, 2) or input.shape_[-1] != self.input_size:
            raise ValueError(f"`input` must be [B, {self.input_size}] or [{self.input_size}], got {input.shape_}")
        wanted = (*input.shape_[:-1], self.hidden_size)
        count = 2 if mode == "LSTM" else 1
        if states is None:
            states = [infinicore.zeros(wanted, dtype=input.dtype, device=input.device)] * count
        for state in states:
            if state.shape_ != wanted:
                raise ValueError(f"`hx` must have shape {wanted} for `input` of {input.shape_}, got {state.shape_}")
        rows = [x if input.ndim == 2 else x.unsqueeze(0) for x in (input, *states)]
        weights = [self._own(name) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        cell = rows[2] if count == 2 else None
        _, h, c = recurrent.layer(rows[0], rows[1], cell, (*weights, None), mode, [rows[0].shape_[0]], False)
        return [x if x is None or input.ndim == 2 else x.squeeze(0) for x in (h, c)]

    def extra_repr(self):
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else ", bias=False")


class RNNCell(RNNCellBase):
    """One step of `RNN`: `input` [B, I] or [I] and h [B, H] or [H] (None: zeros) to the next h."""

    def __init__(self, input_size, hidden_size, bias=True, nonlinearity="tanh", device=None, dtype=None):
        super().__init__(input_size, hidden_size, bias, 1, device, dtype)
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"`nonlinearity` must be 'tanh' or 'relu', got {nonlinearity!r}")
        self.nonlinearity = nonlinearity

    def forward(self, input, hx=None):
        return self._step(input, None if hx is None else [hx], f"RNN_{self.nonlinearity.upper()}")[0]

    def extra_repr(self):
        return super().extra_repr() + ("" if self.nonlinearity == "tanh" else f", nonlinearity={self.nonlinearity}")


class LSTMCell(RNNCellBase):
    """One step of `LSTM`: `input` and (h, c) (None: zeros) to the next (h, c)."""

    def __init__(self, input_size, hidden_size, bias=True, device=None, dtype=None):
        super().__init__(input_size, hidden_size, bias, 4, device, dtype)

    def forward(self, input, hx=None):
        return tuple(self._step(input, None if hx is None else list(hx), "LSTM"))


class GRUCell(RNNCellBase):
    """One step of `GRU`: `input` and h (None: zeros) to the next h."""

    def __init__(self, input_size, hidden_size, bias=True, device=None, dtype=None):
        super().__init__(input_size, hidden_size, bias, 3, device, dtype)

    def forward(self, input, hx=None):
        return self._step(input, None if hx is None else [hx], "GRU")[0]
