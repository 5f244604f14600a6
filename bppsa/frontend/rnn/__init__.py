"""nn.RNN, nn.GRU and nn.LSTM rewritten in place: what a module of a compiled model is, and what one call of it does.

Belongs here: how a module tree is cloned (`clone`), the class such a module gets (`classes`), what an ordinary call is
and how its tensors are laid out (`calls`), which dtypes autocast gives (`autocast`), what was wrong with a call that
failed (`diagnosis`).

Does not belong here: how the recurrence is computed (`bppsa.frontend.rnn.recurrent`).
"""
