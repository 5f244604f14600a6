"""nn.RNN, nn.GRU and nn.LSTM through `bppsa.compile`, from the call to the kernels: their numbers, and what people do
around them."""
