"""Settings of the C library's memory allocator."""

import ctypes
import platform


def keep_freed_memory() -> None:
    """Let the C library keep the memory of freed tensors for the next ones: CPU updates gain ten percent or more.

    By default every large tensor is returned to the system at once, and each page of the next one costs a page fault.
    Only glibc has these two settings; on other systems nothing happens.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    library, trim_threshold, mmap_threshold = ctypes.CDLL(None), -1, -3
    for knob in (trim_threshold, mmap_threshold):
        if not library.mallopt(knob, 1 << 30):
            library.mallopt(knob, 1 << 25)  # the most that some versions take
