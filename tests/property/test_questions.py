"""A question means the same in another process as here."""

from __future__ import annotations

import pickle

from hypothesis import given

from gpuplane.core.forecast.estimates import ForecastLimits
from gpuplane.core.scheduling.policy import Policy
from gpuplane.loops.deciding.questions import WhatOfJob, WhatToStart, WhenEachStarts
from tests.builders import NOW, World
from tests.property.test_scheduling import policies, worlds

LIMITS = ForecastLimits(max_events=5, max_pending=20)


@given(worlds(), policies)
def test_a_question_has_the_same_answer_after_its_way_to_another_process(
    world: World, policy: Policy
) -> None:
    snapshot = world.snapshot()
    asked = world.pending[0].job_id
    for question in (
        WhatToStart(snapshot, policy, NOW, 1),
        WhatOfJob(snapshot, asked, policy, NOW, 1, LIMITS, True),
        WhenEachStarts(snapshot, policy, NOW, 1, LIMITS),
    ):
        there = pickle.loads(pickle.dumps(question))
        assert there.cost_ms == question.cost_ms
        assert repr(pickle.loads(pickle.dumps(there.answer()))) == repr(question.answer())
