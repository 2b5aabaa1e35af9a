"""A population of learners: they train, the best are selected, and the others continue from them."""
