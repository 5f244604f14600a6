"""Networks whose weights are mostly zero: which layers are pruned, which run together on blocked images, and the class
of a module that runs them so.

Belongs here: where a layer's mask is (`masks`), a module's forward as a graph (`tracing`), layers as steps (`layers`,
`functions`), growing regions along the graph (`regions`), and one call of such a module (`classes`).

Does not belong here: how a region is computed (`bppsa.runtime.blocked`), and what it costs (`bppsa.plan.sparse`).
"""
