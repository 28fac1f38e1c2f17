"""What holds for all tests.

Hypothesis profiles, chosen by ``--hypothesis-profile``: ``project`` is quick enough to run at every change, and every
run tries other examples; ``thorough`` tries twenty times as many.
"""

from hypothesis import settings

# A busy machine is no fault: examples take as long as they take.
settings.register_profile("project", deadline=None, max_examples=50)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile("project")
