"""Settings of a run and of algorithms: fields, presets, merging, checking."""
