"""`python -m antiphon.server --bootstrap FILE`: one api-server."""

from antiphon.child import run_child
from antiphon.server.process import main

run_child(main)
