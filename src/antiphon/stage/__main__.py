"""`python -m antiphon.stage --bootstrap FILE`: one stage replica."""

from antiphon.child import run_child
from antiphon.stage.process import main

run_child(main)
