"""Bad usage and bad input as one line and exit status 2."""

import argparse

BAD_USAGE = 2


class BadInputError(Exception):
    """One line that names what is wrong, where, the value seen and what would be right."""


class Arguments(argparse.ArgumentParser):
    """A parser that shows its module's text as help and complains in one line."""

    def __init__(self, description):
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)

    def error(self, message):
        self.exit(BAD_USAGE, f"{self.prog}: {message}; see --help\n")


def number(least, kind=float):
    """Return a converter of an option's text to a finite number that is not below `least`."""

    def convert(text):
        rule = f"must be {'an integer' if kind is int else 'a number'} >= {least}"
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"got {text!r}; {rule}") from None
        if not least <= value < float("inf"):
            raise argparse.ArgumentTypeError(f"got {text!r}; {rule}")
        return value

    return convert
