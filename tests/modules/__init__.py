"""Semantics of rewritten nn.RNN, nn.GRU and nn.LSTM; PyTorch's kernels stand in for `frontend.rnn.recurrent.run`."""
