"""The jobs of the distributed scan: a recurrent model whose time axis is cut over workers."""
