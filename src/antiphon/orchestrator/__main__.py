"""`python -m antiphon.orchestrator --bootstrap FILE`: the control plane's hub."""

from antiphon.process import die_with_parent

die_with_parent()

from antiphon.child import run_child  # noqa: E402
from antiphon.orchestrator.process import main  # noqa: E402

run_child(main)
