"""The one exception that is the user's to mend, and what its messages say of a thing."""


class UserError(ValueError):
    """A mistake that the user can mend: the message says what, where, and what to do, in one line.

    The command line prints the message without a traceback and exits with 2.
    """


def kind_of(thing: object) -> str:
    """What to call something of a wrong kind."""
    return "None" if thing is None else f"of type {type(thing).__name__}"


def printable(text: object) -> str:
    """Text in one line without the control characters that a file's name may hold for a terminal."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in str(text))
