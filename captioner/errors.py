"""The one exception that is the user's to mend."""


class UserError(ValueError):
    """A mistake that the user can mend: the message says what, where, and what to do, in one line.

    The command line prints the message without a traceback and exits with 2.
    """
