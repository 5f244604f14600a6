"""Networks whose weights are mostly zero: which layers are pruned, which run together on blocked images, and the class
of a module that runs them so.

Belongs here: which layers are pruned (`masks`), layers whose mask was given (`masked`), those of torch.nn.utils.prune
(`layer`), and what tells that a mask has changed (`marks`); a module's forward as a graph of TorchDynamo's (`capture`),
what of it is refused (`refusals`, `modes`), which names and methods its guards overlook (`names`) of which classes
(`met`), questions about its nodes (`nodes`) and its layers as nodes of weight and masks (`products`); layers and
functions as steps (`layers`, `functions`, `pointwise`, chosen by `lay`) of a region while it grows (`draft`,
`entries`), growing regions along the graph (`regions`), running it (`graph`), whether a region pays and what is told of
it (`told`); one call of such a module (`classes`), those that are not captured (`unusual`, `left`), another class for
it (`rewritten`), what is kept in it (`state`), and which modules of a clone are given one (`adopt`).

Does not belong here: how a region is computed (`bppsa.runtime.sparse_conv`), and what it costs (`bppsa.plan.sparse`).
"""
