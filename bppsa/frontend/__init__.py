"""How calls of a user's model reach us: classes put before his modules' own, and what a call does in each of them.

A room for each kind of call (`rnn`, `cell`, `feedforward`, `pruned`, `jacobian`, `dynamo`), and beside them what all of
them share: which calls are ordinary, a module's record, the log of a call's decisions, and plans that are kept.
"""
