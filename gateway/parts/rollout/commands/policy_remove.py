"""Run `tierline policy remove`."""

from gateway.parts.rollout.commands._verbs import REMOVE

add_options, run = REMOVE.add_options, REMOVE.run
