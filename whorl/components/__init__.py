"""What agents learn in addition to the policy, one file each; see `whorl.agents.component`."""
