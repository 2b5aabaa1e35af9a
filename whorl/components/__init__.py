"""One file per thing learned beside the policy."""
