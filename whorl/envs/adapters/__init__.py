"""One file per outside environment library."""
