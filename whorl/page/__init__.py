"""Runs on a page: one live on this machine (`whorl serve`), or one self-contained file (`whorl report`)."""
