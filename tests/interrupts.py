"""Signals that come between any two lines of what is tested."""

import contextlib
import sys


@contextlib.contextmanager
def at_line(number, handler, is_tested):
    """Call a handler, as a signal would, before that line of code that is tested, counted as they are run."""
    left = [number]

    def trace(frame, event, argument):
        if not is_tested(frame.f_code):
            return None
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
                sys.settrace(None)
                handler()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def interrupt():
    raise KeyboardInterrupt
