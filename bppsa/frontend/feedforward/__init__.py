"""Feed-forward modules whose backward is a scan over their layers (BPPSA sections 3.1 to 3.3)."""
