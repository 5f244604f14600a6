"""Regions of a captured graph: grown, laid down as steps on blocked images, and told."""
