"""Run `tierline policy pause`."""

from gateway.parts.rollout.commands._verbs import PAUSE

add_options, run = PAUSE.add_options, PAUSE.run
