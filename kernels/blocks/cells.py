"""Argument blocks of the gates of recurrent cells: rows of `size` units, contiguous but for the strides of rows."""

from . import Block

LSTM = Block("x c y h new | size stride c_stride")  # gates [rows, 4 size] before and after; states before and after
LSTM_BACKWARD = Block("g gc y c new dx dc | size g_stride gc_stride c_stride")
GRU = Block("x u h y new | size x_stride u_stride h_stride")  # gates from the input, from the state; [rows, 3 size]
GRU_BACKWARD = Block("g y u h dx du dh | size g_stride u_stride h_stride")
