"""Objects in other processes or on Ray: environment workers, actors, replay shards, learners."""
