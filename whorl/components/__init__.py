"""What agents learn beside the policy, one file each; see `whorl.agents.component`."""
