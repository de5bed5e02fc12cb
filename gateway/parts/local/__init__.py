"""Supervise the processes of `tierline up`: start, watch, restart and stop the store, the local model and the gateway.

    plan        decide what to start, from the config and the environment; report the user's mistakes
    child       run one child process: own session, restarts with backoff, stop within a time limit
    family      run all children: start, signals, stopping in order
    state       hold the state folder: one supervisor at a time, remembered ports, `up.json`
    store_child, local_model, roles    how to start each child, and when it is ready
    banner      the text that the terminal shows once everything is up

No web framework and no model is imported here, so that the children start within half a second of the command.
"""


class CannotStart(Exception):
    """Raised when the user has to change something before the start. The message says what, in one line."""
