"""`python -m antiphon.stage --bootstrap FILE`: one stage replica."""

from antiphon.process import die_with_parent, keep_freed_memory

die_with_parent()
keep_freed_memory()

from antiphon.child import run_child  # noqa: E402
from antiphon.stage.process import main  # noqa: E402

run_child(main)
