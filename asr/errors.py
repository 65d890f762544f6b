"""The exceptions that a user is meant to read."""


class UserError(Exception):
    """Something the user can mend: says what is wrong, where, and what to do about it.

    The command line prints the message without a traceback and exits with status 1.
    """


# Exit status of a run that stopped because it was asked to: EX_TEMPFAIL of <sysexits.h>, for what
# is worth another try.
STOPPED = 75


class Stopped(Exception):
    """Training stopped as it was asked to, with a checkpoint from which the same command goes on.

    The command line prints the message and exits with status ``STOPPED``.
    """
