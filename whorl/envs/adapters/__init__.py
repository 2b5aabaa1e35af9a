"""One file per environment library; see `whorl.envs.adapter`."""
