"""Networks whose weights are mostly zero: which layers are pruned, which run together on blocked images, and the class
of a module that runs them so.

Belongs here: where a layer's mask is (`masks`), layers whose mask was given (`masked`), a module's forward as a graph
(`tracing`), layers and pointwise functions as steps (`layers`, `pointwise`) of a region while it grows (`draft`),
growing regions along the graph (`regions`), whether one pays and what is told of it (`told`), whether masks have become
much denser or sparser since (`densities`), whether anything in the modules has changed since the last call (`seen`),
and one call of such a module (`classes`): another class for it (`rewritten`), which modules of a clone are given
(`adopt`).

Does not belong here: how a region is computed (`bppsa.runtime.blocked`), and what it costs (`bppsa.plan.sparse`).
"""
