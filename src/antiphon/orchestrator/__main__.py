"""`python -m antiphon.orchestrator --bootstrap FILE`: the control plane's hub."""

from antiphon.child import run_child
from antiphon.orchestrator.process import main

run_child(main)
