"""Layers of a feed-forward region on blocked images: steps with a forward and a backward, and one
autograd node around all of them.

Belongs here: images and their conversion (`image`), the kept entries of a weight as the kernels read them (`entries`),
a step for each kind of layer, and the region that runs them (`region`).

Does not belong here: which nodes become steps (`bppsa.frontend.pruned.regions.lay`), and whether that pays
(`bppsa.plan.sparse`).
"""
