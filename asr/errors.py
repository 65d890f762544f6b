"""The one exception that a user is meant to read."""


class UserError(Exception):
    """Something the user can mend: says what is wrong, where, and what to do about it.

    The command line prints the message without a traceback and exits with status 1.
    """
