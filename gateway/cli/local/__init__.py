"""`tierline up`: one process that starts, watches, restarts and stops the store, the local model and the gateway.

    plan        what to start, from the config and the environment; every mistake a user can make ends here
    child       one child process: started in its own session, watched, restarted with backoff, stopped in bounded time
    family      all of them together: signals, order, the end
    state       the state folder: one supervisor at a time, remembered ports, `up.json`
    store_child, local_model, gateway_child    how each child is started and when it is ready
    banner      what the terminal shows once everything is up

It imports no web framework and no model, so that the children start within half a second of the command.
"""


class CannotStart(Exception):
    """Something the user has to change first. The message is the one line that says what."""
