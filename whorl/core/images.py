"""How an array of three axes is read as a picture. Torch is not needed for that, and workers do without it."""


def channels_first(shape: tuple[int, ...]) -> bool:
    """Whether [a, b, c] is [C, H, W] and not [H, W, C].

    Two equal neighbouring axes are the sides of a square picture; of other shapes the shorter end holds the channels.
    What is still open, such as [10, 10, 10], is [H, W, C].
    """
    start, middle, end = shape
    if (start == middle) != (middle == end):
        return middle == end
    return start < end
