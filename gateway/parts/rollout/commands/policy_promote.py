"""Run `tierline policy promote`."""

from gateway.parts.rollout.commands._verbs import PROMOTE

add_options, run = PROMOTE.add_options, PROMOTE.run
