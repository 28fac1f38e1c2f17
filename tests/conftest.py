"""What holds for all tests."""

from hypothesis import settings

# A busy machine is no fault: examples take as long as they take.
settings.register_profile("project", deadline=None)
settings.load_profile("project")
