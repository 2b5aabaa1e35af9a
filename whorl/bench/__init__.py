"""Comparing algorithms over environments and seeds: `whorl bench`."""
